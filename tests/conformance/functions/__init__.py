"""Functions made from the words of the cases."""
