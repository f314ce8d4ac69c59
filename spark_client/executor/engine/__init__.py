"""Sends batches through calls of every kind and returns batches with the outcomes.

row_engine  the calls over all batches of a task; messages: joins small batches, cuts large ones, reads outcomes
groups      joins outcomes to the batches of their rows; pieces, piecewise: parts of large batches
policy      handles rows and segments that failed
"""
