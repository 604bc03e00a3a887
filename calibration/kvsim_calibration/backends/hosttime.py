"""Whole decode steps against the sum of their kernels: what the host adds to a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.cost import CostModel
from kvsim.cost.shape import StepShape
from kvsim.device import DeviceProfile
from kvsim.model import from_config
from kvsim_calibration.backends.measured import merged
from kvsim_calibration.backends.store import Store
from kvsim_calibration.backends.torchrun import LAYERS, VOCABULARY
from kvsim_calibration.lines import Row


@dataclass(frozen=True, slots=True)
class HostTime:
    """What whole steps take beyond the profile's prediction, over the steps measured."""

    steps: int
    share: float
    """of the predicted time, median; negative where the sum of the kernels is the larger"""
    ns_per_layer: float
    """median"""


def host_time(profile: DeviceProfile, store: Store) -> HostTime | None:
    """None where no whole step was measured."""
    rows = [row for row in merged(store) if row["family"] == "step"]
    if not rows:
        return None
    predicted = np.array([_predicted(profile, row) for row in rows])
    extra = np.array([row["ns"] for row in rows]) - predicted
    return HostTime(len(rows), float(np.median(extra / predicted)), float(np.median(extra)) / LAYERS)


def _predicted(profile: DeviceProfile, row: Row) -> float:
    """ns of the step as the simulator sees it, without an engine's constants."""
    model = from_config({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": row["hidden"],
        "intermediate_size": row["inter"], "num_hidden_layers": LAYERS, "num_attention_heads": row["heads"],
        "num_key_value_heads": row["kv_heads"], "head_dim": row["head_dim"], "vocab_size": VOCABULARY,
        "max_position_embeddings": 1 << 20, "tie_word_embeddings": True, "hidden_act": "silu"}, "a few layers")
    cost = CostModel.of(model, profile, weights_dtype=row["dtype"], kv_dtype=row["dtype"], block_size=16)
    n, length = row["n"], row["length"]
    return float(cost.step(StepShape(decode=n, attended=(n * length,), longest=(length,), growing=(n,),
                                     longest_grows=(True,), chunks=(), sampled=n)))
