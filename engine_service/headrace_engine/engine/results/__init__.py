"""What a sequence generated: its log, its statistics, and what is reserved for them."""
