"""Routing of calls to the engines behind the gateway, and forwarding."""
