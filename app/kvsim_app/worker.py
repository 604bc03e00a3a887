"""A process that simulates: one JSON object a line in, one or more out.

In:  {"scenario": {…}, "folder": "…"}
Out: {"done": 0.4} …, then {"folder": "…"} or {"error": "a sentence"}
Results are saved at once or not at all, so the app may kill this process at any moment.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from kvsim import InputError, Result, Scenario, run  # noqa: F401  (loads the simulator before the first job)

_EVERY_S = 0.1


def main() -> None:
    out = sys.stdout
    sys.stdout = sys.stderr  # what a library prints must not look like an answer
    for line in sys.stdin:
        _say(out, _answer(json.loads(line), out))


def _answer(job: dict[str, Any], out: Any) -> dict[str, Any]:
    told = 0.0

    def progress(done: float, total: float) -> None:
        nonlocal told
        if time.monotonic() - told > _EVERY_S:
            told = time.monotonic()
            _say(out, {"done": done / total if total else 0.0})

    try:
        run(Scenario.model_validate(job["scenario"]), progress).save(job["folder"])
    except InputError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"a bug in kvsim, {type(error).__name__}: {error} (please report it)"}
    return {"folder": job["folder"]}


def _say(out: Any, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
