"""Models: what their files say, what they compute, and how their weights are read."""
