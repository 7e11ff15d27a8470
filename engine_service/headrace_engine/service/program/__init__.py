"""The program headrace-engine: its command line, its life, and what it logs of models."""
