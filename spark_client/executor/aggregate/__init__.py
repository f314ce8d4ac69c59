"""Runs aggregate functions inside Spark's Python workers."""
