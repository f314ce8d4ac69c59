"""Scalar calls over whole rows: `with_columns` and `select` of the session."""
