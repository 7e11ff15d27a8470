"""What the rest stands on: retries, deadlines, forks, threads and loops."""
