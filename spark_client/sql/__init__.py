"""SQL with remote functions: the implementation of `RemoteSession.sql`.

queries           plans and explains the queries of one session
statements        reads each statement of a text once and runs it; wrong_calls: calls that no function fits
statement_sets    reads and runs statement sets; once_inserted: each row of a stream is inserted once
passes            the passes over a statement, in their order
rewriting         a pass: every SELECT with remote aggregates becomes one over a DataFrame, from the inside out
registry          the functions and statements of side buildings, which are imported on first use
tables            what FROM may contain
groups            GROUP BY and OVER
fewer_calls       the same rows with fewer calls of scalar functions
rows              what a SELECT reads, and the calls in it
text              texts as trees, and trees as texts: the parser, and the writers
"""
