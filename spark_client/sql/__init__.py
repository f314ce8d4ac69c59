"""SQL with remote functions: what `RemoteSession.sql` does with a text.

parsing      the text as a tree, or left to Spark
names        which functions a text names, remote ones and Spark's
rewriting    the tree from the inside out: each SELECT with remote aggregates becomes one over a DataFrame
aggregates   GROUP BY; grouping reads its keys and sets
windows_over OVER; window_frames reads its frames
hidden       what both compute below the rest of a SELECT, and what stays in it
single_calls a scalar call in several clauses, made once
statements   what a statement does with its query
"""
