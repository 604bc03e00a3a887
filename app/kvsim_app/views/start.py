"""Start: what a first-time visitor sees."""

from __future__ import annotations

from kvsim_app.runs import welcome

welcome()
