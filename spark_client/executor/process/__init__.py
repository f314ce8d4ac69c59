"""Runs process table functions inside Spark's Python workers."""
