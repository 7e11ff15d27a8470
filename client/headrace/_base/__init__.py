"""Basics for the rest of the client: retries, deadlines, forks, threads and event loops."""
