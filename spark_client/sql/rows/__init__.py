"""What a SELECT reads, and the remote calls in it.

names             the functions that a text calls, remote ones and Spark's; functions creates the remote calls
workspace         the DataFrames that a tree contains as tables; it is passed on with the statement
sources           the rows that a SELECT reads; calls finds the aggregates in it
table_calls       calls in FROM with table arguments; constants: arguments that are values
stream_times      keeps the time column of a stream with its rows
conditions        conditions on the rows of Parquet files that workers check
models            a function with constant arguments and options, under the name that SQL gives it
"""
