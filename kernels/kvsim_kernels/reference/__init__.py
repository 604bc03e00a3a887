"""What each kernel computes, in NumPy float64 and a few lines: the truth of the tests."""
