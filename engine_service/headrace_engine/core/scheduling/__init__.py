"""What the next step computes, and for whom."""
