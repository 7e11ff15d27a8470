"""The contract, row by row, and the paths on which it holds."""
