"""Conversion between Python values and messages of the wire."""
