"""Models in SQL.

models            a function with constant arguments and options, under the name that SQL gives it
model_statements  CREATE MODEL and the other statements about models; model_constants: their constant arguments
predictions       ML_PREDICT; vector_search: VECTOR_SEARCH
condition_order   conditions in the order of their measured cost and selectivity; call_estimates: the calls of a query
"""
