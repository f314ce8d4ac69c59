"""What users of models need beside calls: cascades, estimates, and the nearest vectors.

The main road does not import this package: methods such as `RemoteSession.cascade` do when they are called.

calibration  makes a cascade: calls both functions for a sample
cascade      two functions as one
estimate     what calls would cost

In workers, too:

thresholds   the threshold from which the answers of the cheap function are taken
nearest      the nearest vectors of each vector
"""
