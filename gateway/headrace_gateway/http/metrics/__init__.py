"""`/metrics`: what a gateway tells Prometheus."""
