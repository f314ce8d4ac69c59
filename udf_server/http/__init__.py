"""HTTP: /metrics, /livez, /readyz and the page, in front of clients that may be hostile."""
