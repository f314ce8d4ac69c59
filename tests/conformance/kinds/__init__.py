"""One module per kind of case: `claims(case)` recognises it, `observe(case, environment, bound)` runs it."""
