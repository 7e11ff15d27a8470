"""A hostile mix beside honest streams: who reads, who attacks with what, and what servers take meanwhile."""
