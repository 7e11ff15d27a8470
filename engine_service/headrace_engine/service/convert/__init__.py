"""Wire messages from and to domain objects, and what is refused by form or size."""
