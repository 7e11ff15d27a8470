"""Results of a sequence: its log, its statistics, and the bytes reserved for them."""
