"""Limits are shared between processes and servers by ledgers: each leases a part of them, ahead of its calls."""
