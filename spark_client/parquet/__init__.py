"""Parquet files that Spark's workers read and write, so that their rows do not pass through the JVM.

The main road does not import this package: `RemoteSession.read_parquet` and `write_parquet` do when they are called. A
DataFrame of Spark has a scan beside it, which `planning/scans.py` keeps; by it workers read the files of the DataFrame.

reading     plans the scan: files, columns, and the settings of Spark that concern them; divides files among tasks
conditions  translates conditions in SQL on the rows of files
writing     plans and runs a write, and commits it

In workers:

scan        reads the files of a task as batches
conform     converts columns to the types that Spark gives them, and refuses dates of another calendar
output      writes the rows of a task to files, in directories by the values of columns
staging     the directory of files that are not published, and the marker of a writer
committing  begins a write, publishes its files, or deletes them
"""
