"""Deterministic simulation: the real client and server on one thread, under a seeded clock, scheduler and network."""
