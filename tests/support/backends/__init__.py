"""Sequences and runners of the backends, driven by hand, and the references they are compared with."""
