"""The program headrace-engine: its command line, its lifecycle, and its logs about models."""
