"""The device of the cuda backend, simulated on the CPU by csrc, and engines that compute on it."""
