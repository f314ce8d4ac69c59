"""GROUP BY and OVER with remote aggregates.

aggregates        GROUP BY; grouping reads its keys and sets, over_groups rewrites the rest of the SELECT
window_groups     GROUP BY the windows of a window function
windows_over      OVER; window_frames reads its frames
hidden            expressions that both compute below the rest of a SELECT
key_conditions    conditions on keys, which are checked before the calls
"""
