"""Single ops of the native core on a CPU, beside the limits of the machine."""
