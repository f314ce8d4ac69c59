"""Scalar calls over whole rows: `with_columns`, `select` and `lateral_join` of the session."""
