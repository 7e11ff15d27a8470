"""`headrace bench`: puts a running service under a load, and says what its users would feel."""
