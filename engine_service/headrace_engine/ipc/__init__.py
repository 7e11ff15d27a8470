"""What the two halves of an engine send each other: plans, commands, messages, and their frames."""
