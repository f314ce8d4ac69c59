"""Calls of process table functions over DataFrames."""
