"""SQL with remote functions: what `RemoteSession.sql` does with a text.

statements        what a text is run by: each of its statements is read once, rewritten and run
statement_sets    statements that share operators; shared_calls keeps the operators
dialect           Spark SQL as sqlglot reads and writes it; arguments reads tables, names and descriptors in calls
parsing           the text as tokens and as a tree, and the places that errors name
names             which functions a text names, remote ones and Spark's; functions calls the remote ones
workspace         the DataFrames that stand in a tree as tables; it travels with the statement
table_calls       calls in FROM that are passed tables, read from the tree
process_functions process table functions in FROM
window_functions  window functions in FROM; window_groups, window_joins and window_ranking read what is over them
rewriting         the tree from the inside out: each SELECT with remote aggregates becomes one over a DataFrame
aggregates        GROUP BY; grouping reads its keys and sets, over_groups what is left of the SELECT
windows_over      OVER; window_frames reads its frames
hidden            what both compute below the rest of a SELECT, and what stays in it
sources           the rows that a SELECT is over; calls finds the aggregates in it
single_calls      a scalar call in several clauses, made once; joined_calls: on one side of a join
empty_calls       a scalar call without arguments
stream_times      the time of a stream, which goes with its rows
explaining        what Spark's plan says of scalar calls
"""
