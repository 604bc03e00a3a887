"""What a profile predicts for measured rows, by the simulator's own code: there is no second copy of the arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from kvsim.cost.attention import GroupAttention
from kvsim.cost.geometry import Attention, Experts, Linear
from kvsim.cost.line import Floats
from kvsim.cost.lookup import collective_curve, linear_row, memory_curve, moe_row
from kvsim.cost.table import all_reduce_ns, experts_ns, linear_ns, memory_op_ns
from kvsim.device import AttentionKey, DeviceProfile, HeldOutError, MoeKey
from kvsim_calibration.rows import KEY, KEYS


def predict(profile: DeviceProfile, family: str, frame: pl.DataFrame) -> Floats:
    """ns of each row."""
    if not frame.height:
        return np.empty(0)
    parts, places = [], []
    indexed = frame.with_row_index("place")
    for key, rows in groups(indexed, KEYS[family]):
        parts.append(_PREDICT[family](profile, key, rows))
        places.append(rows["place"].to_numpy())
    ns = np.empty(frame.height)
    ns[np.concatenate(places)] = np.concatenate(parts)
    return ns


def groups(frame: pl.DataFrame, by: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], pl.DataFrame]]:
    """({column: value}, rows) for each distinct value of the columns, in a fixed order."""
    for values, rows in frame.sort(by, maintain_order=True).group_by(by, maintain_order=True):
        yield dict(zip(by, values, strict=True)), rows


def answered(profile: DeviceProfile, family: str, key: dict[str, Any]) -> tuple[str, str]:
    """(rung, provenance) of a profile's answer for a key: exact, interpolated, nearest or form; "" for families that
    have one source only."""
    if family in ("decode", "prefill"):
        origin = getattr(_group(profile, key), family).origin
    elif family == "linear":
        origin = linear_row(profile, key["n"], key["k"], key["dtype"]).origin
    elif family == "moe":
        origin = moe_row(profile, moe_key(key), key["dtype"]).origin
    else:
        return "exact", ""
    return origin.how, origin.source


def error(profile: DeviceProfile, family: str, frame: pl.DataFrame) -> HeldOutError | None:
    """Relative errors over rows; None without any."""
    return summary(predict(profile, family, frame) / frame["ns"].to_numpy() - 1) if frame.height else None


def summary(errors: Floats) -> HeldOutError:
    """Median and 95th percentile of the size, median with sign, of relative errors."""
    size = np.abs(errors)
    return HeldOutError(median=round(float(np.median(size)), 4), p95=round(float(np.percentile(size, 95)), 4),
                        bias=round(float(np.median(errors)), 4), rows=len(errors))


def quantiles(errors: Sequence[float]) -> dict[str, float | None]:
    """The statistics of a validation's answer over signed relative errors; None where there are none."""
    if not len(errors):
        return dict.fromkeys(("median_abs", "p90_abs", "p95_abs", "bias", "coverage90"))
    size = np.abs(np.asarray(errors))
    return {"median_abs": float(np.median(size)), "p90_abs": float(np.percentile(size, 90)),
            "p95_abs": float(np.percentile(size, 95)), "bias": float(np.median(errors)), "coverage90": None}


def attention_key(key: dict[str, Any]) -> AttentionKey:
    """Columns of a row → the key of its curve."""
    return AttentionKey(**{name: key[name] for name in KEY})


def _group(profile: DeviceProfile, key: dict[str, Any]) -> GroupAttention:
    wanted = attention_key(key)
    return GroupAttention(Attention(wanted, wanted, 1), profile)


def _decode(profile: DeviceProfile, key: dict[str, Any], rows: pl.DataFrame) -> list[float]:
    group = _group(profile, key)
    return [group.row(n).line.at(n * attended) for n, attended in rows.select("n", "attended").iter_rows()]


def _prefill(profile: DeviceProfile, key: dict[str, Any], rows: pl.DataFrame) -> list[float]:
    group = _group(profile, key)
    return [group.prefill_ns(((tokens, context),) * chunks)
            for chunks, tokens, context in rows.select("chunks", "tokens", "context").iter_rows()]


def _mixed(profile: DeviceProfile, key: dict[str, Any], rows: pl.DataFrame) -> list[float]:
    group = _group(profile, key)
    return [sum(group.fused_ns(((tokens, context),), n, n * attended, attended))
            for tokens, context, n, attended in rows.select("tokens", "context", "n", "attended").iter_rows()]


def _skew(profile: DeviceProfile, key: dict[str, Any], rows: pl.DataFrame) -> list[float]:
    """From the measured times of the equal batches: what is tried is alpha alone."""
    group = _group(profile, key)
    predicted = []
    for tokens, n, mean, longest, low, high in rows.select(
            "tokens", "n", "mean", "longest", "ns_mean", "ns_longest").iter_rows():
        row = group.row(n)
        alpha = row.skew_mixed if tokens else row.skew
        predicted.append(low + (alpha.at(longest / mean) if alpha else 0.0) * (high - low))
    return predicted


def _linear(profile: DeviceProfile, key: dict[str, Any], rows: pl.DataFrame) -> Floats:
    layer = Linear("", key["n"], key["k"], key["dtype"], 1)
    return linear_ns(layer, linear_row(profile, layer.n, layer.k, layer.dtype), profile.facts, _floats(rows["m"]))


def _moe(profile: DeviceProfile, key: dict[str, Any], rows: pl.DataFrame) -> Floats:
    experts = Experts(moe_key(key), key["dtype"], 1)
    return experts_ns(experts, moe_row(profile, experts.key, experts.dtype), profile.facts, _floats(rows["m"]))


def moe_key(key: dict[str, Any]) -> MoeKey:
    """Columns of a row → the key of its curve."""
    return MoeKey(hidden=key["hidden"], inter=key["inter"], experts=key["experts"], top_k=key["top_k"])


def _memory(profile: DeviceProfile, key: dict[str, Any], rows: pl.DataFrame) -> Floats:
    return memory_op_ns(memory_curve(profile, key["op"], key["dtype"])[0], profile.facts, _floats(rows["bytes"]))


def _collective(profile: DeviceProfile, key: dict[str, Any], rows: pl.DataFrame) -> Floats:
    return all_reduce_ns(collective_curve(profile, key["gpus"])[0], profile.facts, key["gpus"], _floats(rows["bytes"]))


def _floats(column: pl.Series) -> Floats:
    return column.cast(pl.Float64).to_numpy()


_PREDICT: dict[str, Callable[[DeviceProfile, dict[str, Any], pl.DataFrame], Any]] = {
    "decode": _decode, "prefill": _prefill, "mixed": _mixed, "skew": _skew, "linear": _linear, "moe": _moe,
    "memory": _memory, "collective": _collective,
}
