"""Statement sets: statement_sets reads and runs them, once_inserted inserts each row of a stream once."""
