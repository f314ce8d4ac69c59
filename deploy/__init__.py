"""What an operator starts from: container image, Compose, Kubernetes, Prometheus, Grafana."""
