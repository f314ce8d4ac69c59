"""Statistics of calls, and what they have cost: tasks report them, and the driver collects the reports."""
