"""`RemoteSession.read_parquet` and `write_parquet`: Parquet files that workers read and write.

A DataFrame of Spark has a scan beside it, by which workers read its files.

reading  plans the scan: files, columns, and the settings of Spark that concern them
splits   divides files among tasks, as Spark does
writing  plans and runs a write, and commits it
"""
