"""The base of all other folders: functions, their types and values, errors, metrics. It imports no other folder."""
