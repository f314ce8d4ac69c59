"""The server as an operator sees it: configuration, processes, health, logs, what its network exposes."""
