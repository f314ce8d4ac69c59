"""What a SELECT reads, and the remote calls in it.

scope             what a tree may refer to: DataFrames, common table expressions; it is passed to every pass
sources           the rows that a SELECT reads; calls finds the aggregates in it
functions         the functions that a text calls, remote ones and Spark's, and the calls of the remote ones
table_calls       calls in FROM: their tables, descriptors and constants; flink_options: their options
shared_operators  calls of process functions that several statements share
stream_times      keeps the time column of a stream with its rows
"""
