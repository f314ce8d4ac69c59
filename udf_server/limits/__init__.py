"""Limits say when a call may begin: the guard of its function, the budgets of its job and caller, its time."""
