"""Deployment files for operators: container image, Compose, Kubernetes, Prometheus, Grafana."""
