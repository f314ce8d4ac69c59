"""Batches in, batches out, for calls of every kind: what a stream does is hidden here.

row_engine  one call over many batches; merging: small batches become one
groups      outcomes put together into the batches they came in; pieces, piecewise: parts of large ones
policy      what happens to a row that failed
"""
