"""The demo of `make demo`: look-ups from PySpark, timed, on real data."""
