"""Cores on a simulated runner, in this process and in their own."""
