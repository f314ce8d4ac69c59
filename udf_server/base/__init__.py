"""What every other folder builds on: functions, their types and values, errors, metrics. Imports no other folder."""
