"""Plans calls of process table functions over DataFrames."""
