"""Result streams: readers, sessions, and the queues that callers read."""
