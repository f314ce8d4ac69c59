"""SQL with remote functions: the implementation of `RemoteSession.sql`.

queries           plans and explains the queries of one session
statements        reads each statement of a text once, rewrites and runs it
statement_sets    statements that share operators; shared_calls keeps the operators, once_inserted inserts on streams
text              texts as trees, and trees as texts: the parser, and the writers
names             the functions that a text calls, remote ones and Spark's; functions creates the remote calls
workspace         the DataFrames that a tree contains as tables; it is passed on with the statement
table_calls       calls in FROM with table arguments
lateral_calls     functions that return rows in FROM; lookup_joins: FOR SYSTEM_TIME AS OF; joined_rows makes both joins,
                  whole_structs keeps Spark from breaking them
process_functions process table functions in FROM
window_functions  window functions in FROM; window_groups, window_joins and window_ranking handle queries over them
function_descriptions  DESCRIBE FUNCTION
model_statements  CREATE MODEL and the other statements about models; predictions: ML_PREDICT; vector_search: its name
rewriting         rewrites the tree from the inside out: a SELECT with remote aggregates becomes one over a DataFrame
aggregates        GROUP BY; grouping reads its keys and sets, over_groups rewrites the rest of the SELECT
windows_over      OVER; window_frames reads its frames
hidden            expressions that both compute below the rest of a SELECT
sources           the rows that a SELECT reads; calls finds the aggregates in it
single_calls      a scalar call that several clauses share; joined_calls: a scalar call on one side of a join
fused_calls       scalar calls that become one operator; needed_items finds the items that must be computed
empty_calls       a scalar call without arguments
stream_times      keeps the time column of a stream with its rows
parquet_tables    Parquet files in FROM that workers read
conditions        conditions on the rows of Parquet files that workers check
explaining        what Spark's plan says about scalar calls
"""
