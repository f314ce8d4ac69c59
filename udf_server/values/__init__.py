"""Values of Python and Arrow: the codec of each type, and conversions row by row."""
