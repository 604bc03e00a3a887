"""Where a device has no curve of the very key: what stands in for it, under which name, and how sure that is."""

from __future__ import annotations

import pytest
from cost_cases import GOOD, KEY, decode_curve, decoding, geometry, profile, provenance

from kvsim.cost import CostModel, Geometry
from kvsim.cost.lookup import attention_distance, decode_blend, linear_row, moe_row
from kvsim.device import DeviceProfile, LinearTable, MoeCurve, MoeKey
from kvsim.device.datasheet import GPU


def decode_ns(device: DeviceProfile, model: Geometry) -> float:
    return CostModel(model, device).parts(decoding(32, 1000))["attention_decode"].ns


def test_the_very_key_wins() -> None:
    device = profile(decode=(decode_curve(1.5), decode_curve(9.0, kv_heads=4), decode_curve(9.0, kv_heads=16)))
    assert decode_ns(device, geometry()) == pytest.approx(1.5 * decode_ns(profile(), geometry()))
    part = CostModel(geometry(), device).parts(decoding(32, 1000))["attention_decode"]
    assert (part.tier, part.how, part.error_p95) == ("imported", "exact", GOOD.p95)


def test_the_page_size_alone_is_no_other_key() -> None:
    assert decode_blend(profile(decode=(decode_curve(1.5, block_size=0),)), KEY).origin.how == "exact"


def test_neighbours_are_interpolated_by_distance() -> None:
    device = profile(decode=(decode_curve(1.0, kv_heads=4, heads=16), decode_curve(2.0, kv_heads=16, heads=64)))
    part = CostModel(geometry(), device).parts(decoding(32, 1000))["attention_decode"]
    assert part.how == "interpolated" and part.error_p95 == 0.12
    assert part.ns == pytest.approx(1.5 * decode_ns(profile(), geometry()))


def test_a_far_key_lends_its_ratio() -> None:
    device = profile(decode=(decode_curve(1.4, kv_dtype="fp8"),))
    part = CostModel(geometry(), device).parts(decoding(32, 1000))["attention_decode"]
    assert part.how == "nearest" and part.error_p95 == 0.25
    assert part.ns == pytest.approx(1.4 * decode_ns(profile(), geometry()))


def test_nothing_known_is_the_form_and_says_so() -> None:
    model = CostModel(geometry(), profile())
    part = model.parts(decoding(32, 1000))["attention_decode"]
    assert (part.tier, part.how, part.error_p95) == ("datasheet", "form", GPU.decode_error.p95)
    assert model.tier(decoding(32, 1000)) == "datasheet"


def test_a_naive_kernel_is_no_flash_kernel() -> None:
    naive = KEY.model_copy(update={"kernel": "naive"})
    assert decode_blend(profile(decode=(decode_curve(1.4),)), naive).origin.how == "form"


def test_beyond_the_grid_the_last_ratio_holds_with_a_wider_error() -> None:
    model = CostModel(geometry(), profile(decode=(decode_curve(1.5),)))
    bare = CostModel(geometry(), profile())
    for n, context in ((32, 60_000), (2000, 1000), (32, 2)):
        shape = decoding(n, context)
        part = model.parts(shape)["attention_decode"]
        assert part.beyond_grid and part.error_p95 == 0.3
        assert part.ns == pytest.approx(1.5 * bare.parts(shape)["attention_decode"].ns)


def table(dtype: str, shapes: dict[tuple[int, int], float]) -> LinearTable:
    return LinearTable(dtype=dtype, form=GPU.linear, m=(1, 4096), shapes=tuple(shapes),
                       ratio=tuple((r, r) for r in shapes.values()), source="test")


@pytest.mark.parametrize(("shape", "dtype", "how", "ratio"), [
    ((4096, 4096), "bf16", "exact", 1.0),
    ((4096, 4096), "fp16", "exact", 1.0),
    ((8192, 8192), "bf16", "interpolated", 2.5),
    ((4096, 8192), "bf16", "interpolated", 1.5),
    ((10**6, 4096), "bf16", "nearest", 3.0),
    ((4096, 4096), "fp8", "form", 1.0),
])
def test_linear_layers_fall_back(shape: tuple[int, int], dtype: str, how: str, ratio: float) -> None:
    corners = {(4096, 4096): 1.0, (4096, 16384): 2.0, (16384, 4096): 3.0, (16384, 16384): 4.0}
    row = linear_row(profile(linear=(table("bf16", corners),)), *shape, dtype)
    assert row.origin.how == how
    assert row.ratio == pytest.approx((ratio,) * len(row.ratio))


def test_a_layers_own_table_comes_before_a_grid() -> None:
    grid = table("bf16", {(4096, 4096): 1.0, (4096, 8192): 1.0, (8192, 4096): 1.0, (8192, 8192): 1.0})
    device = profile(linear=(table("bf16", {(4096, 4096): 2.0}), grid))
    assert linear_row(device, 4096, 4096, "bf16").ratio[0] == 2.0
    assert linear_row(device, 8192, 8192, "bf16").ratio[0] == 1.0
    assert linear_row(device, 5120, 5120, "bf16").ratio[0] == pytest.approx(1.0)


def test_scattered_shapes_are_weighted_by_distance() -> None:
    row = linear_row(profile(linear=(table("bf16", {(4096, 4096): 1.0, (16384, 4100): 2.0}),)), 4096 * 2, 4096, "bf16")
    assert row.origin.how == "interpolated"
    assert 1.4 < row.ratio[0] < 1.6


def test_experts_fall_back() -> None:
    key = MoeKey(hidden=4096, inter=14336, experts=8, top_k=2)
    curve = MoeCurve(key=key, dtype="bf16", form=GPU.moe, m=(1, 4096), ratio=(1.2, 1.2), source="test")
    assert moe_row(profile(moe=(curve,)), key, "bf16").origin.how == "exact"
    other = key.model_copy(update={"experts": 64})
    assert moe_row(profile(moe=(curve,)), other, "bf16").origin.how == "nearest"
    assert moe_row(profile(moe=(curve,)), key, "fp8").origin.how == "form"


def test_a_rung_without_a_number_is_as_bad_as_the_next() -> None:
    known = provenance().model_copy(update={"points": None})
    device = profile(decode=(decode_curve(1.5),)).model_copy(update={"provenance": {"test": known}})
    assert decode_blend(device, KEY).origin.p95 == 0.12


def test_distance_is_in_octaves() -> None:
    assert attention_distance(KEY, KEY) == 0
    assert attention_distance(KEY, KEY.model_copy(update={"kv_heads": 16, "heads": 64})) == 1
    changes: list[dict[str, object]] = [{"block_size": 64}, {"heads": 64}, {"window": 128}, {"kv_dtype": "fp8"}]
    distances = [attention_distance(KEY, KEY.model_copy(update=change)) for change in changes]
    assert distances == sorted(distances)
