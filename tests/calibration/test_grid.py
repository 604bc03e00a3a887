"""Which cases are measured: every family, coarse first, as the models and the sizes ask."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvsim_calibration.backends.cases import Case
from kvsim_calibration.backends.grid import Size, cases, ladder

from kvsim.errors import InputError
from kvsim.model import load_model


def test_the_grid_holds_every_family_and_comes_coarse_first(grid: list[Case]) -> None:
    families = {case.family for case in grid}
    assert families == {"ceiling", "decode", "prefill", "mixed", "linear", "memory", "step"}
    assert [case.level for case in grid] == sorted(case.level for case in grid)
    assert {case.family for case in grid if case.level == 0} == {"ceiling", "decode", "prefill", "linear", "memory"}
    assert len({case.name for case in grid}) == len(grid)
    decode = [case.values for case in grid if case.family == "decode"]
    assert {(v["kv_dtype"], v["block_size"]) for v in decode} >= {("fp32", 0), ("fp32", 16), ("int8", 16), ("int4", 16)}
    ops = {case.values["op"] for case in grid if case.family == "memory"}
    assert ops == {"append", "score", "copy", "host_copy", "norm", "rope", "act", "embed", "sample"}


def test_the_grid_follows_the_models_and_the_sizes(config: Path) -> None:
    large = Size(batch=8, context=512, chunk=64, cache_bytes=1 << 30, dtypes=("bf16", "fp32"), devices=2)
    found = cases([load_model("llama-3.1-8b"), load_model(config)], large)
    assert {(c.values["n"], c.values["k"]) for c in found if c.family == "linear"} >= {(6144, 4096), (28672, 4096),
                                                                                      (128, 64)}
    assert {case.family for case in found} >= {"skew", "collective"}
    assert max(c.values["length"] * c.values["n"] for c in found if c.family == "decode") == 8 * 512
    small = cases([load_model("llama-3.1-8b")], Size(8, 512, 64, 1 << 20, ("bf16",)))
    assert max(c.values["length"] * c.values["n"] for c in small
               if c.family == "decode" and c.values["kv_dtype"] == "bf16") * 4096 == 1 << 20
    heads = [c.values["m"] for c in small if c.family == "linear" and c.values["n"] == 128256]
    assert max(heads) == 8


def test_a_model_whose_attention_has_no_operator_is_refused() -> None:
    with pytest.raises(InputError, match="latent attention"):
        cases([load_model("deepseek-v3")], Size(2, 128, 32, 1 << 22, ("fp32",)))


@pytest.mark.parametrize(("low", "high", "step", "found"), [(1, 9, 2, [1, 2, 4, 8]), (8, 8, 4, [8]), (16, 4, 2, [])])
def test_ladder(low: int, high: int, step: float, found: list[int]) -> None:
    assert ladder(low, high, step) == found
