"""Code that runs inside Spark's Python workers: plain threads and blocking calls, pyspark only in task.py."""
