"""The gateway: serves what an engine serves, in front of one or many engines, and keeps nothing durable."""

__version__ = "0.1.0"

API_VERSION = "1.0"
"""Version of the wire contract that this gateway speaks."""
