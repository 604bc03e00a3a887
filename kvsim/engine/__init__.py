"""The engine: a running set that steps in constant time, and the SimPy process that drives it."""
