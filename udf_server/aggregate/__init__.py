"""Aggregate functions: what authors derive from, how it is declared, and how a bundle runs."""
