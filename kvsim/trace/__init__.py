"""Traces: what requests arrive when, how long they are, and which prompts begin alike."""

from kvsim.trace.loading import load, readable
from kvsim.trace.types import Request, Trace, make_trace

__all__ = ["Request", "Trace", "load", "make_trace", "readable"]
