"""The cache keeps outcomes of scalar functions, so that equal rows are called once: keys, stores and the runner."""
