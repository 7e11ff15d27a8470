"""Requests from their start to their release."""
