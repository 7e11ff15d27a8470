"""`headrace-engine --doctor`: says what this machine can run, and why not the rest, by the code that engines run."""
