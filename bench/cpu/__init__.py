"""The native core on a CPU, from single steps to the whole service, beside its limits and its peers."""
