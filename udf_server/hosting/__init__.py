"""Functions as they run: opened once, on threads and event loops of their own, with the load that they bear."""
