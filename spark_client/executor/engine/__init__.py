"""Sends batches through calls of every kind and returns batches with the outcomes.

row_engine  the calls over all batches of a task; merging: joins small batches, cuts large ones
groups      joins outcomes to the batches of their rows; pieces, piecewise: parts of large batches
policy      handles rows and segments that failed
"""
