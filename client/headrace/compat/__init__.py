"""What the packages with other systems' APIs share: opening a client, and running a model over it."""
