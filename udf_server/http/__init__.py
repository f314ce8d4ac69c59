"""The HTTP server for /metrics, /livez, /readyz and the web UI. Its clients may be hostile."""
