"""What several measurements share: pages of results, the machine, models, environment variables."""
