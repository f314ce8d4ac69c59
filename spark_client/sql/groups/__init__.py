"""GROUP BY and OVER with remote aggregates.

aggregates        GROUP BY; grouping reads its keys, sets and windows, over_groups rewrites the rest of the SELECT
windows_over      OVER
hidden            expressions that both compute below the rest of a SELECT
"""
