"""One module per kind of case: `claims(case)` says whether it is one, `observe(case, environment, bound)` runs it."""
