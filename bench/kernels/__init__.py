"""Single ops of core_cpu, beside the limits of the machine."""
