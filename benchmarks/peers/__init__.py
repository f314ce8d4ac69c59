"""Comparisons with other servers of functions, and with the usual PySpark ways without a server."""
