"""Where finished rows are kept (kvsim_calibration/lines.py), so that a run that was stopped goes on where it was.

The file's name is a hash of everything that a row depends on (model files, text, lengths, code), so what lies there
is never from another question.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import kvsim_kernels.reference.select as select

import kvsim.cache.retention as retention
import kvsim_calibration.accuracy as accuracy
from kvsim_calibration.engine import model, ops
from kvsim_calibration.engine.caches import base
from kvsim_calibration.engine.caches import store as formats

_CODE = (base, formats, model, ops, retention, select)
"""what a row depends on beside this package"""


def place(facts: dict[str, Any]) -> Path:
    """Where the rows of a run with these facts lie."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    files = [Path(str(module.__file__)) for module in _CODE]
    for file in [*files, *sorted(Path(str(accuracy.__file__)).parent.glob("*.py"))]:
        digest.update(file.read_bytes())
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "kvsim" / "accuracy" / f"{digest.hexdigest()[:16]}.jsonl"
