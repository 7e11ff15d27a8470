"""Runs steps, and applies and reports their results."""
