"""The same rows with fewer calls of scalar functions.

single_calls      a scalar call that several clauses share; joined_calls: a scalar call on one side of a join
fused_calls       scalar calls that become one operator
needed_items      items that must be computed, and those that nothing reads
limited_calls     a LIMIT below the calls
explaining        what Spark's plan says about scalar calls
"""
