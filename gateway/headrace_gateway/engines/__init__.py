"""The engines behind the gateway: which there are, and their last known state, load and reachability."""
