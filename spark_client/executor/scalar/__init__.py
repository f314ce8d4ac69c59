"""What runs inside the Python workers of Spark for scalar functions: `rows` in mapInArrow, `column` as an Arrow UDF."""
