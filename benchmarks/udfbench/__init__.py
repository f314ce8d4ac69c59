"""The queries of UDFBench (VLDB 2025) in our own words, with our own functions, on generated tables of its schema.

data       the tables and files
logic      what the functions compute, without Spark and without a server
plugin     the functions of the server; all_rows: the base of some aggregates
local      PySpark's own UDFs, UDTFs and pandas aggregates with the same bodies
queries    the 21 queries
suite      runs them alternately on both sides
"""
