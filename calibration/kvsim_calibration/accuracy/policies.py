"""Which policies are measured, and how they are written: a precision, a retention, or both joined by "+".

`"int8"`, `"window:sinks=4,recent=508"`, `"int4+heavy_hitter:budget=512,recent=256"`; a name of `kvsim list policies` is
its precision and retention.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvsim.cache.policies import POLICIES
from kvsim.cache.retention import FULL, RETENTIONS, HeavyHitter, Retention, SnapKV, Window, parse_retention
from kvsim.errors import InputError
from kvsim.precision import kv_bytes
from kvsim.registry import unknown
from kvsim_calibration.accuracy.stored import PRECISIONS, REFERENCE

SINKS = 4
OBSERVE = 32


@dataclass(frozen=True, slots=True)
class Policy:
    """What is kept, and as which numbers."""

    precision: str = REFERENCE
    retention: Retention = FULL

    @property
    def name(self) -> str:
        parts = [] if self.precision == REFERENCE and self.retention != FULL else [self.precision]
        return "+".join(parts + ([retention_text(self.retention)] if self.retention != FULL else []))

    def kept(self, prompt: int, steps: int) -> float:
        """Mean share of the tokens so far that the cache holds, over `steps` decode steps after a prompt."""
        held = (min(self.retention.kept(prompt) + step, self.retention.cap) / (prompt + step)
                for step in range(1, steps + 1))  # fmt: skip
        return sum(held) / steps

    def token_bytes(self, layers: int, kv_heads: int, head_dim: int) -> int:
        """Bytes of one kept token, scales included."""
        extra = 4 * kv_heads if self.precision.startswith("fp8-head") else 0  # an fp16 scale for K and for V
        return layers * (kv_bytes(self.precision.partition("-")[0], kv_heads, head_dim) + extra)


FULL_CACHE = Policy()


def retention_text(retention: Retention) -> str:
    """What `parse_retention` reads."""
    kind = next(name for name, known in RETENTIONS.items() if isinstance(retention, known))
    values = [f"{f.name}={getattr(retention, f.name)}" for f in fields(retention) if f.name != "cap"]  # type: ignore[arg-type]
    return ":".join([kind, ",".join(values)]) if values else kind


def defaults(context: int) -> list[Policy]:
    """Every precision; every retention at 1/2, 1/4 and 1/8 of a context of so many tokens; some of both."""
    half, quarter, eighth = context // 2, context // 4, context // 8
    return [
        *(Policy(precision) for precision in PRECISIONS if precision not in (REFERENCE, "fp16", "fp32")),
        *(Policy(retention=Window(0, budget)) for budget in (half, quarter)),
        *(Policy(retention=_sinks(budget)) for budget in (half, quarter, eighth)),
        *(Policy(retention=_heavy(budget)) for budget in (half, quarter, eighth)),
        *(Policy(retention=SnapKV(budget, OBSERVE)) for budget in (half, quarter, eighth)),
        Policy("int8", _sinks(quarter)), Policy("int8", SnapKV(quarter, OBSERVE)), Policy("int4", _heavy(quarter)),
    ]  # fmt: skip


def windows(context: int) -> list[Policy]:
    """A quarter of the context, without sinks and with them: what StreamingLLM compares."""
    return [Policy(retention=Window(0, context // 4)), Policy(retention=_sinks(context // 4))]


def quick(context: int) -> list[Policy]:
    """One of each kind, at a quarter of the context."""
    budget = context // 4
    retentions = (Window(0, budget), _sinks(budget), _heavy(budget), SnapKV(budget, min(OBSERVE, budget // 4)))
    return [*(Policy(p) for p in ("fp8", "fp8-head-basis", "int8", "int4")), *(Policy(retention=r) for r in retentions)]


def _sinks(budget: int) -> Window:
    return Window(SINKS, budget - SINKS)


def _heavy(budget: int) -> HeavyHitter:
    return HeavyHitter(budget, budget // 2)


def parse(text: str) -> list[Policy]:
    """A list with commas. Raises InputError for what is not known."""
    items: list[str] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        if items and "=" in piece and ":" not in piece:
            items[-1] += f",{piece}"  # a parameter of the retention before it
        else:
            items.append(piece)
    found = list(dict.fromkeys(_parse_one(item) for item in items))
    if not found:
        raise InputError("--policies names none; it takes a list such as int8,window:sinks=4,recent=508,snapkv")
    return [policy for policy in found if policy != FULL_CACHE]


def _parse_one(text: str) -> Policy:
    presets = dict(POLICIES.items())
    if text in presets and text.partition(":")[0] not in RETENTIONS.names():
        spec = presets[text]
        return Policy(REFERENCE if spec.precision == "auto" else spec.precision, spec.retention)
    policy = FULL_CACHE
    for part in text.split("+"):
        if part in PRECISIONS:
            policy = Policy(part, policy.retention)
        elif part.partition(":")[0] in RETENTIONS.names():
            policy = Policy(policy.precision, parse_retention(part))
        else:
            raise unknown("policy", part, list(dict.fromkeys([*PRECISIONS, *RETENTIONS.names(), *presets])))
    return policy
