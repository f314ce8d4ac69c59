"""Odd bytes on purpose: `python -m tests.fuzz` sends mutated and random messages and looks for what should not be."""
