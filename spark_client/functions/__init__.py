"""What a user holds and calls: functions of the server as Python objects, and what such a call returns.

directory     which functions the servers have; version_pins: which version a name without one means
scalar        RemoteFunction; column_calls: a Column that remembers which call it is
aggregate     RemoteAggregate, and an aggregate over a window; window: Window and its frame
registration  functions under names of Spark SQL
"""
