"""Writing of models in our own format."""
