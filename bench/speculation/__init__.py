"""Measures what speculation gains and costs."""
