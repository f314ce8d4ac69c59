"""The server's functions as Python objects that users call, and the objects that such calls return.

directory     the functions of the servers, and the versions of names without one
scalar        RemoteFunction; arguments: what users pass to calls, as columns
column_calls  calls as columns of Spark, alone and inside expressions
aggregate     RemoteAggregate, and an aggregate over a window; window: Window and its frame
registration  the registration of functions in Spark SQL; registered_names: their names there, and the users' names
"""
