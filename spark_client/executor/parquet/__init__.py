"""Reads Parquet files in Spark's Python workers, as Spark reads them, without passing rows through the JVM.

scan       reads the files of a task as batches
footers    chooses the row groups of a split, and says which calendar a file was written in
conform    converts columns to the types that Spark gives them
"""
