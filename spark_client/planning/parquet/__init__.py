"""`RemoteSession.read_parquet`: Parquet files as a DataFrame of Spark, with a scan by which workers read them.

reading    plans the scan: files, columns, and the settings of Spark that concern them
splits     divides files among tasks, as Spark does
"""
