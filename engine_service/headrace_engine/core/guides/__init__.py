"""Grammars of response formats, compiled concurrently with the steps."""
