"""Runs process table functions on streams: the state and timers of buckets of keys are in Spark's state store."""
