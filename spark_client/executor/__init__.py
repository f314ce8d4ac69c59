"""What runs inside Spark's Python workers: plain threads and blocking calls, no pyspark but for task.py."""
