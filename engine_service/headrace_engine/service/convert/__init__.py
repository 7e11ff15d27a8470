"""Conversion of wire messages from and to domain objects, and refusals by form or size."""
