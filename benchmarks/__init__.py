"""Measurements of the whole system: `python -m benchmarks --suite scalar`."""
