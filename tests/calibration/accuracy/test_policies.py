"""What is stored, what it takes, how policies are written."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kvsim_calibration.accuracy import policies
from kvsim_calibration.accuracy.policies import FULL_CACHE, Policy
from kvsim_calibration.accuracy.stored import PRECISIONS, stored
from kvsim_kernels.reference import quantize

from kvsim.cache import retention
from kvsim.errors import InputError


def test_what_is_stored_is_what_the_kernels_reference_stores() -> None:
    everything = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).float()
    finite = everything[everything.abs() < 1e30][:57984].view(-1, 64)
    spread = torch.randn(500, 3, 64, generator=torch.Generator().manual_seed(0)).exp()
    for x in (finite, spread):
        given = x.bfloat16().float().numpy()
        for precision, format in (("fp8", "fp8_tensor"), ("fp8-head", "fp8"), ("int8", "int8"), ("int4", "int4")):
            true = quantize.numbers(*quantize.quantize(given, format), format)
            assert np.array_equal(stored(x, precision).numpy(), true.astype(np.float32), equal_nan=True), precision
    assert torch.equal(stored(spread, "fp32"), spread)
    assert torch.equal(stored(spread, "bf16"), spread.bfloat16().float())


def test_bytes_are_those_of_the_simulator() -> None:
    def size(precision: str) -> int:
        return Policy(precision).token_bytes(30, 3, 64)

    assert {p: size(p) for p in PRECISIONS} == {
        "bf16": 23040, "fp16": 23040, "fp32": 46080, "fp8": 11520, "fp8-head": 11520 + 360,
        "fp8-head-basis": 11520 + 360, "int4-basis": 5760 + 1440, "int8": 11520 + 360,
        "int4": 5760 + 1440,
    }
    assert Policy(retention=retention.Window(4, 12)).kept(40, 2) == pytest.approx((16 / 41 + 16 / 42) / 2)
    assert Policy(retention=retention.SnapKV(20, 8)).kept(40, 2) == pytest.approx((21 / 41 + 22 / 42) / 2)
    assert FULL_CACHE.kept(40, 2) == 1


def test_policies_are_read_as_they_are_written() -> None:
    for policy in [*policies.defaults(2048), *policies.quick(512)]:
        assert policies.parse(policy.name) == [policy]
    found = policies.parse("int8, window:sinks=4,recent=508,fp8-head-basis,int4+snapkv:budget=64,observe=8,paged-fp8,"
                           "streaming,bf16")
    assert [policy.name for policy in found] == [
        "int8", "window:sinks=4,recent=508", "fp8-head-basis", "int4+snapkv:budget=64,observe=8", "fp8",
        "window:sinks=4,recent=1020",
    ]


@pytest.mark.parametrize(("text", "said"), [
    ("int9", "int8"), ("window:sinks=x", "window"), (",", "names none"), ("int8+streming", "streming"),
])
def test_unknown_policies_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        policies.parse(text)
