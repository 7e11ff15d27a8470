"""Rotary position embedding: as files and callers describe it, and its tables."""
