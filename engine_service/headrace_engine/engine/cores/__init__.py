"""The front half's ends of cores: their life cycle, and their results."""
