"""Fuzzing: `python -m tests.fuzz` sends mutated and random messages and checks how the server reacts."""
