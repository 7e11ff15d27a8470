"""Servers, engines and cores that answer by a script."""
