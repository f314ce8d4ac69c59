"""Groups rows by key, for calls whose rows are segments.

failures     applies error policies to segments
cutting      cuts batches to tables of a bundle's size
keys         finds rows with equal keys, and the beginnings of their runs
sorted_rows  sorted rows in whole keys, in parts if a key has more rows than a bundle; in whole partitions of any size
"""
