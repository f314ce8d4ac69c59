"""Coordination shares limits between processes and servers: each leases a part of them, ahead of its calls."""
