"""The demo of `make demo`: lookups from PySpark, timed, on real data."""
