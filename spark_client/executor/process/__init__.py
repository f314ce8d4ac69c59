"""What runs inside Spark's Python worker for process table functions."""
