"""Helpers of the tests: whatever more than one folder of tests, or the benchmarks, use."""
