"""A process that simulates: one JSON object a line in, one or more out.

In:  {"scenario": {…}, "folder": "…"}
Out: {"done": 0.4} …, then {"folder": "…"} or {"error": "a sentence"}
Results are saved at once or not at all, so the app may kill this process at any moment. What was overheard is saved
first: where there is a Result it is there too.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from kvsim import InputError, Scenario
from kvsim.setup import prepare
from kvsim.simulate import Progress, results, trace_of
from kvsim_app.overheard import Overheard

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
        simulate(Scenario.model_validate(job["scenario"]), Path(job["folder"]), progress)
    except InputError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"a bug in kvsim, {type(error).__name__}: {error} (please report it)"}
    return {"folder": job["folder"]}


def simulate(scenario: Scenario, folder: Path, progress: Progress | None = None) -> None:
    """Run a scenario into a Result folder, and what is overheard on the way into a file beside it."""
    heard, setup = Overheard(), prepare(scenario)
    result = results(trace_of(scenario), heard.of(setup), progress)[0]
    heard.save(folder, result)
    result.save(folder)


def _say(out: Any, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
