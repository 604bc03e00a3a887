"""A process that computes: one JSON object a line in, one or more out.

In:  {"task": "run", "scenario": {…}, "options": {…}, "place": "…"}
Out: {"done": 0.4} …, then {"place": "…"} or {"error": "a sentence"}
What a task makes is written whole or not at all, so the app may kill this process at any moment.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from kvsim import InputError, Scenario
from kvsim_app.tasks import TASKS

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
        TASKS[job["task"]](
            Scenario.model_validate(job["scenario"]), Path(job["place"]), progress, **job.get("options", {})
        )
    except InputError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"a bug in kvsim, {type(error).__name__}: {error} (please report it)"}
    return {"place": job["place"]}


def _say(out: Any, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
