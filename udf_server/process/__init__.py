"""Process table functions: what authors derive from, how it is declared, and how segments run (FLIP-440)."""
