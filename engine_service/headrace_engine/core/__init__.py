"""The core (back half): scheduler, block pool, prefix cache, and the loop that drives a runner."""
