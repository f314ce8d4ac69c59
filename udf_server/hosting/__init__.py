"""Hosts functions in a running server: their hooks, their threads and event loops, and the load of the process."""
