"""The families whose layers have mixtures of experts."""
