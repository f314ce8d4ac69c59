"""Fault injection: `python -m tests.chaos` runs jobs while servers and networks fail, and checks their rows."""
