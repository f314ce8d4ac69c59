"""Statement sets: statements that share operators.

statement_sets    reads and runs them
shared_calls      keeps the operators
once_inserted     inserts each row of a stream once
"""
