"""Statistics of calls for `remote.summary()`: tasks report them, and the driver collects the reports."""
