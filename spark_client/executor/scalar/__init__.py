"""Runs scalar functions inside Spark's Python workers: `rows` in mapInArrow, `column` as an Arrow UDF."""
