"""Drafted ids: who guesses them, and the rows that compute them."""
