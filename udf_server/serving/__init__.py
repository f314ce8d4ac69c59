"""The server for operators: configuration, processes, health, logs and network exposure."""
