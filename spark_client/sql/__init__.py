"""SQL with remote functions: the implementation of `RemoteSession.sql`.

queries           plans and explains the queries of one session
statements        reads each statement of a text once, rewrites and runs it
rewriting         rewrites the tree from the inside out: a SELECT with remote aggregates becomes one over a DataFrame
function_descriptions  DESCRIBE FUNCTION
empty_calls       a scalar call without arguments
models, parquet   statements about models and functions of them; Parquet files in FROM
tables            what FROM may contain
groups            GROUP BY and OVER
fewer_calls       the same rows with fewer calls of scalar functions
sets              statement sets
rows              what a SELECT reads, and the calls in it
text              texts as trees, and trees as texts: the parser, and the writers
"""
