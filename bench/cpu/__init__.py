"""The cpu backend, from single steps to the whole service, beside its limits and its peers."""
