"""Rows told apart by key, for calls whose rows are segments.

cutting     batches as tables of a bundle's size
keys        which rows have equal keys, and where runs of them begin
key_rows    sorted rows as whole keys, and in parts where a key has more rows than a bundle
partitions  sorted rows of whole partitions, whatever their size
tasks       what a task over sorted rows opens and closes
"""
