"""Process table functions on streams: buckets of keys, whose state and timers are in Spark's state store."""
