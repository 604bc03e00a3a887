"""kvsim: what each KV-cache policy does to memory, fragmentation and latency, for your model, GPU and traffic.

    import kvsim

    scenario = kvsim.Scenario(trace="sample", model="llama-3.1-8b", device="h100-sxm", policy="paged-prefix")
    result = kvsim.run(scenario)
    result.summary["latency_s"]["ttft"]["p99"]

What is named here is public; it loads when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim import native

if TYPE_CHECKING:
    from kvsim.errors import InputError
    from kvsim.result import Result
    from kvsim.scenario import Scenario
    from kvsim.simulate import run

__version__ = "0.1.0"
__all__ = ["InputError", "Result", "Scenario", "run"]

_HOME = {"InputError": "kvsim.errors", "Result": "kvsim.result", "Scenario": "kvsim.scenario", "run": "kvsim.simulate"}


native.use()


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
