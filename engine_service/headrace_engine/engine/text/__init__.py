"""From text to ids and back, and where a text ends."""
