"""Predicted against true, rung by rung. Each rung is one module that answers a `Report`."""

from kvsim.validate.report import Report, Row

__all__ = ["Report", "Row"]
