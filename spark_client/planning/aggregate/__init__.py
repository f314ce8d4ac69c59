"""Plans remote aggregates: what is asked for, the rows, the steps, the result."""
