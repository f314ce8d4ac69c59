"""Batching merges rows of all streams of a function into common calls, if its author or operator asks for that."""
