"""An engine whose core the test plays."""
