"""Errors, configuration, options, names and types that all other folders use. This folder imports no other folder.

config       the arguments of `connect`, which are sent to executors; security: certificates and tokens
calls        what a task must know to open the stream of one call; options: reading the options of a call
errors       the error classes that users see; targets: addresses and paths that users give
statistics   what a task counts, and what calls of a function have cost
types        Spark's types for Arrow and Python; identifiers: names of columns by the rules of the session
changelogs   the column `row_kind`; grouped: Spark's own groupings, and what describes their state
notebooks    what IPython and Jupyter show; job_tags: jobs that are cancelled, as for an interrupted cell
"""
