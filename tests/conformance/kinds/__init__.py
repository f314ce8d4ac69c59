"""One module per kind of case: `claims(case)` says whether it is one, `run(case, environment)` runs it."""
