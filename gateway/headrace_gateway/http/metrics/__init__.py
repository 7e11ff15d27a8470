"""`/metrics`: the metrics of a gateway for Prometheus."""
