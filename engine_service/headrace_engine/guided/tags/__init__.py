"""Grammars of structural tags: parts of a text that are held to formats, among text that is free."""
