"""Conversion between text and ids, and stops."""
