"""What calls did, as `remote.summary()` and `remote.progress()` show it: reports of tasks, gathered on the driver."""
