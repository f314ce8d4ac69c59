"""Texts in Spark SQL, and their trees.

dialect     Spark SQL as sqlglot reads and writes it; relations parses what sqlglot lacks in FROM, arguments parses
            tables, names and descriptors in calls
parsing     a text as tokens and as a tree, and the positions that errors name
nodes       the type of the nodes of a tree
"""
