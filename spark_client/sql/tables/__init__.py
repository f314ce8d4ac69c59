"""What FROM may contain.

process_functions process table functions
window_functions  window functions; window_joins and window_ranking handle queries over them
lateral_calls     functions that return rows, also FOR SYSTEM_TIME AS OF; joined_rows makes their joins
"""
