"""The same rows with fewer calls of scalar functions.

single_calls      a scalar call that several clauses share; joined_calls: a scalar call on one side of a join
fused_calls       scalar calls that become one operator; needed_items finds the items that must be computed
limited_calls     a LIMIT below the calls
unused_columns    calls whose values nothing reads
explaining        what Spark's plan says about scalar calls
"""
