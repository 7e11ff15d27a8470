"""Real servers as processes, what stands between them and their clients, and what they must have back."""
