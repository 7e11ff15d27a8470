"""The calls of clients, and what they share."""
