"""From calls to DataFrames, on the driver. One folder per way in which Spark runs a call.

rows       scalar calls over whole rows: `with_columns`, `select`
over       aggregates with OVER
aggregate  GROUP BY, in batch and on streams
process    process table functions

argument_types   columns against the parameters of a function
key_columns      columns as Spark compares them, for keys and orders; sort_directions: `desc` told from a value
dead_letters     dead letters read back as rows
passed_columns   columns that only pass along, in types that Spark hands to Python
"""
