"""Texts in Spark SQL, and their trees.

parsing     a text as tokens and as a tree, and the positions that errors name
dialect     Spark SQL as sqlglot reads and writes it; arguments parses what sqlglot lacks in calls and in FROM,
            tokens makes tokens what they are for Spark
settings    the settings of a session with which Spark reads texts
substitutions  what is replaced in a text before it is read
spans       the part of the text that a node was read from, and whether the node is still the same
writers     trees as texts: for Spark, and canonical ones, which are compared and shown
nodes       the type of the nodes of a tree, and how the ones that passes need are made
"""
