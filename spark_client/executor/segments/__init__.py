"""Groups rows by key, for calls whose rows are segments.

cutting  cuts batches to tables of a bundle's size, of whole keys (in parts if a key is larger), of whole partitions
keys     finds rows with equal keys, and the beginnings of their runs
"""
