"""Meaning of messages to both sides: failures, rows of a session; and the interface of transports."""
