"""The engines behind the gateway: their last known state, routing of calls to them, and forwarding."""
