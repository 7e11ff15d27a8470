"""Answers parted into calls of tools, thoughts and text, for every API; which calls are wanted; events as bytes."""
