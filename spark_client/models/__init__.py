"""What users of models need beside calls: cascades, estimates, statements about models, predictions, vector search.

The main road does not import this package: methods such as `RemoteSession.cascade` do when they are called, and SQL
when a text has one of its functions or statements (`sql/registry.py`, `sql/passes.py`).

calibration       makes a cascade: calls both functions for a sample
cascade           two functions as one
estimate          what calls would cost; call_estimates: those of a query
condition_order   conditions in the order of their measured cost and selectivity
model             a function with constant arguments and options, under the name that SQL gives it
model_statements  CREATE MODEL, ALTER MODEL and the other statements about models
model_calls       ML_PREDICT, ML_EVALUATE; vector_search: VECTOR_SEARCH

In workers, too:

thresholds        the threshold from which the answers of the cheap function are taken
nearest           the nearest vectors of each vector
"""
