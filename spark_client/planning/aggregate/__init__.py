"""Plans remote aggregates: the query, its rows, the steps, and the result."""
