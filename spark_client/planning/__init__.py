"""Turns calls into DataFrames, on the driver. There is one folder for each way in which Spark runs a call.

rows       scalar calls over whole rows: `with_columns`, `select`
over       aggregates with OVER
aggregate  GROUP BY, in batch and on streams
process    process table functions

key_columns       makes columns for keys and orders that compare as Spark compares them
scans             DataFrames whose rows workers can read themselves, by whatever reads them
sort_directions   distinguishes `desc` from a value
dead_letters      reads dead letters back as rows
"""
