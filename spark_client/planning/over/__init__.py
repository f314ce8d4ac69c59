"""Aggregates with OVER: the rows of a partition, sorted, with the frames of each row."""
