"""The in-process transport: an engine inside its caller's process."""
