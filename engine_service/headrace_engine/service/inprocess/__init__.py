"""An engine inside its caller's process."""
