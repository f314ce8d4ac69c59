"""The server's functions as Python objects that users call, and the objects that such calls return.

directory     the functions of the servers; version_pins: the version of a name without one
scalar        RemoteFunction; column_calls: a Column that stores the call that it was made from
aggregate     RemoteAggregate, and an aggregate over a window; window: Window and its frame
registration  the registration of functions in Spark SQL
"""
