"""Texts in Spark SQL, and their trees.

parsing     a text as tokens and as a tree, and the positions that errors name
dialect     Spark SQL as sqlglot reads and writes it; relations parses what sqlglot lacks in FROM, arguments parses
            tables, names and descriptors in calls
substitutions  what is replaced in a text before it is read
comments    blanks comments before a text is read
spans       the part of the text that a node was read from, and whether the node is still the same
writers     trees as texts: for Spark, and canonical ones, which are compared and shown
nodes       the type of the nodes of a tree
"""
