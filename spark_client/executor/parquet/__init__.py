"""Reads and writes Parquet files in Spark's Python workers, as Spark does, without passing rows through the JVM.

scan        reads the files of a task as batches
footers     chooses the row groups of a split, and says which calendar a file was written in
conform     converts columns to the types that Spark gives them
output      writes the rows of a task to files
partitions  divides rows among directories by the values of columns
staging     the directory of files that are not published, and the marker of a writer
committing  begins a write, publishes its files, or deletes them
"""
