"""Results on their way: readers, sessions, and the queues that callers read."""
