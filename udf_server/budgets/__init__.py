"""Budgets bound what a job spends, over all its streams on all servers that share a coordination."""
