"""Turns calls into DataFrames, on the driver. There is a folder or module for each way in which Spark runs a call.

rows       scalar calls over whole rows: `with_columns`, `select`
over       aggregates with OVER: the rows of a partition, sorted, with the frames of each row
aggregate  GROUP BY, in batch and on streams
process    process table functions

key_columns   makes columns for keys and orders that compare as Spark compares them
operators     what runs over Arrow batches in workers
scans         DataFrames whose rows workers can read themselves, by whatever reads them, and selections of columns
dead_letters  reads dead letters back as rows
"""
