"""What every other folder builds on: errors, configuration, options, names and types. Imports no other folder.

config       what `connect` was given, as it travels to executors; security: certificates and tokens
calls        what a task must know to open the stream of one call; options: reading the options of a call
errors       the tree of errors that users see
statistics      what a task counts
types        Spark types as Arrow types; identifiers: names of columns by the rules of the session
changelogs   the column `row_kind`; notebooks: HTML that Jupyter shows
"""
