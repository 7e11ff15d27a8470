"""Steps as they are run, and what they bring."""
