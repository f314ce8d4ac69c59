"""What runs inside Spark's Python workers for aggregate functions."""
