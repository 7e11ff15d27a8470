"""Grammars of answers with calls of tools, as models write them."""
