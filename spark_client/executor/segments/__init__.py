"""Groups rows by key, for calls whose rows are segments.

failures    applies error policies to segments
cutting     cuts batches to tables of a bundle's size
keys        finds rows with equal keys, and the beginnings of their runs
key_rows    sorted rows in whole keys; if a key has more rows than a bundle, in parts
partitions  sorted rows in whole partitions of any size
tasks       runs a task over sorted rows, and releases its resources
"""
