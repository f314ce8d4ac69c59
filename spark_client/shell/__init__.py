"""`remote-udf sql`: a shell for people who want to try."""
