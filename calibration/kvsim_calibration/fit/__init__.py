"""Rows → curves: physical constants by a robust relative fit, then the ratio to them, thinned to few knots."""
