"""The command line. Needs the extra `cli` of this package."""
