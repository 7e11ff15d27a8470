"""Session streams: of clients on one side, of engines on the other."""
