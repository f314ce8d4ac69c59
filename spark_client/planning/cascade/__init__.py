"""Cascades: choose the threshold from which the answers of a cheap function are taken."""
