"""Random queries with remote functions that imitate Spark's own, compared with Spark's result of the same query."""
