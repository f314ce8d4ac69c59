"""Faults on purpose: `python -m tests.chaos` runs jobs while servers and networks fail, and counts rows."""
