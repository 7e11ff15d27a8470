"""The KV pool: block ownership, the prefix cache over it, and the host tier behind it."""
