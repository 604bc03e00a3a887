"""Fits: known curves come back, splits are seeded, holes follow their kind, thin tables stay true."""

from __future__ import annotations

from itertools import product

import numpy as np
import polars as pl
import pytest
from kvsim_calibration.build import Options, build, groups_of, held_out_keys, held_out_points
from kvsim_calibration.cli import _knots_of
from kvsim_calibration.evaluate import predict
from kvsim_calibration.fit import attention, tabulated
from kvsim_calibration.fit.holes import filled
from kvsim_calibration.fit.mixed import SKEWS, mixed_curves, skew_table
from kvsim_calibration.fit.thin import knots, ragged
from kvsim_calibration.rows import KEYS, POINTS, Rows
from kvsim_calibration.split import held_out

from kvsim.device import AttentionKey, Curves, DeviceProfile, load_device
from kvsim.device.forms import DecodeForm, MatmulForm, PrefillForm, prefill_ns, prefill_work
from kvsim.errors import InputError

BARE = load_device("h100-sxm").model_copy(update={"curves": Curves(), "provenance": {}})
FACTS = BARE.facts
DECODE = DecodeForm(fixed_ns=9_000, per_head_ns=25, fill=1.5, efficiency=0.88)
PREFILL = PrefillForm(fixed_ns=12_000, tile=64, flop_efficiency=0.6, byte_efficiency=0.4)
HEADS = ((32, 8), (16, 4), (8, 2), (64, 8), (40, 8), (8, 1), (4, 1), (28, 4), (12, 2), (48, 8))


def key(heads: int, kv_heads: int) -> dict[str, object]:
    return {"heads": heads, "kv_heads": kv_heads, "head_dim": 128, "kv_dtype": "bf16", "window": 0, "block_size": 0}


def decode_frame(slow: float = 1.0) -> pl.DataFrame:
    """Rows that follow DECODE exactly, × `slow` for 8 KV heads."""
    rows = []
    for (heads, kv), n, context in product(HEADS, (1, 4, 16, 64, 256), (16, 128, 1024, 4096, 16384)):
        per_row = AttentionKey(**key(heads, kv)).read_bytes_per_token  # type: ignore[arg-type]
        ns = (DECODE.fixed_ns + DECODE.per_head_ns * n * kv
              + n * context * per_row * (1 + DECODE.fill / (n * kv)) / (DECODE.efficiency * FACTS.bandwidth) * 1e9)
        rows.append({**key(heads, kv), "n": n, "length": context, "attended": context, "ns": ns * (
            slow if kv == 8 else 1)})
    return pl.DataFrame(rows)


def made(*rows: Rows, base: DeviceProfile = BARE, **options: float) -> DeviceProfile:
    return build(base, "aic", rows, "kvsim calibrate …", Options(**options))  # type: ignore[arg-type]


def rows_of(family: str, frame: pl.DataFrame) -> Rows:
    return Rows(family, frame, "handmade", "MIT", versions={"vllm": "0"})


def test_constants_of_a_known_decode_kernel_come_back() -> None:
    form = attention.decode_form(decode_frame(), FACTS)
    for name in ("fixed_ns", "per_head_ns", "fill", "efficiency"):
        assert getattr(form, name) == pytest.approx(getattr(DECODE, name), rel=0.03), name


def test_a_profile_of_a_known_curve_is_exact() -> None:
    profile = made(rows_of("decode", decode_frame()), wanted=False)
    (provenance,) = profile.provenance.values()
    assert provenance.points is not None and provenance.points.p95 < 0.01 and provenance.points.rows >= 30
    assert provenance.keys is not None and provenance.keys.p95 < 0.02
    assert provenance.tier == "imported" and provenance.licence == "MIT"
    assert len(profile.curves.decode) == len(HEADS)


def test_a_wrong_form_is_put_right_by_the_ratio() -> None:
    frame = decode_frame(slow=1.7)
    profile = made(rows_of("decode", frame), wanted=False)
    (points,) = (p.points for p in profile.provenance.values())
    assert points is not None and points.median < 0.03


def test_one_glitch_does_not_lift_its_neighbours() -> None:
    frame = decode_frame()
    first = (pl.col("n") == 1) & (pl.col("attended") == 16) & (pl.col("heads") == 32)
    glitched = frame.with_columns(ns=pl.when(first).then(pl.col("ns") * 4).otherwise("ns"))
    clean, dirty = (predict(made(rows_of("decode", f), wanted=False), "decode", frame) for f in (frame, glitched))
    assert np.abs(dirty / clean - 1).max() < 0.05


def test_constants_of_a_known_prefill_kernel_come_back() -> None:
    rows = []
    for (heads, kv), chunks, tokens in product(HEADS, (1, 4, 16), (16, 64, 256, 1024, 4096)):
        kernel = AttentionKey(**key(heads, kv))  # type: ignore[arg-type]
        flops, bytes_ = prefill_work(PREFILL, kernel, tokens, 0)
        rows.append({**key(heads, kv), "chunks": chunks, "tokens": tokens, "context": 0,
                     "ns": prefill_ns(PREFILL, FACTS, chunks, chunks * flops, chunks * bytes_)})
    form = attention.prefill_form(pl.DataFrame(rows), FACTS)
    assert form.tile == PREFILL.tile
    assert form.flop_efficiency == pytest.approx(PREFILL.flop_efficiency, rel=0.02)


def linear_frame() -> pl.DataFrame:
    """A kernel with a cliff at m = 65, the same for all shapes."""
    rows = []
    for n, k, m in product((1024, 2048, 4096, 8192), (1024, 2048, 4096, 8192), (1, 16, 32, 64, 65, 96, 128, 256, 512)):
        by_bytes = (n * k * 2 + m * (n + k) * 2) / (0.8 * FACTS.bandwidth) * 1e9
        by_flops = 2 * n * k * m / (0.7 * FACTS.peak_flops("bf16")) * 1e9
        rows.append({"dtype": "bf16", "n": n, "k": k, "m": m,
                     "ns": (4_000 + max(by_bytes, by_flops)) * (1.5 if 65 <= m < 128 else 1)})
    return pl.DataFrame(rows)


def test_a_cliff_is_found_where_its_row_was_held_out() -> None:
    profile = made(rows_of("linear", linear_frame()), wanted=False)
    (group,) = groups_of("aic", [rows_of("linear", linear_frame())])
    tried = held_out_points(group, profile).filter(pl.col("m").is_in([64, 65, 96, 128]))
    assert tried.height > 5 and tried["error"].abs().median() < 0.03


def test_weights_from_a_warm_l2_bound_a_table_and_are_no_trial_of_it() -> None:
    """All shapes below 16 MB ran five times as fast as memory can be: predicted is what memory allows."""
    frame = linear_frame().with_columns(warm=(pl.col("n") * pl.col("k") < 8e6) & (pl.col("m") <= 64))
    frame = frame.with_columns(ns=pl.when("warm").then(pl.col("ns") / 5).otherwise("ns"))
    profile = made(rows_of("linear", frame), wanted=False)
    (group,) = groups_of("aic", [rows_of("linear", frame)])
    for tried in (held_out_points(group, profile), held_out_keys(group, profile)):
        assert tried.height and not tried["warm"].any()
    (table,) = profile.curves.linear
    assert table.form.byte_efficiency == pytest.approx(0.8, rel=0.05)
    warm = frame.filter("warm")
    from_memory = (warm["n"] * warm["k"]).to_numpy() * 2e9 / (0.8 * FACTS.bandwidth)
    assert (predict(profile, "linear", warm) >= 0.95 * from_memory).all()


def test_prefill_kernels_with_as_many_blocks_jump_at_the_same_lengths() -> None:
    """Waves of 128 blocks of 128 queries: a held-out row is known from kernels with other heads and other chunks."""
    rows = []
    for (heads, kv), chunks, tokens in product(HEADS, (1, 2, 4, 8, 16, 32), (128, 256, 512, 1024, 2048)):
        waves = -(-chunks * heads * tokens // 128 // 128)
        rows.append({**key(heads, kv), "chunks": chunks, "tokens": tokens, "context": 0,
                     "ns": 10_000 + 30_000.0 * waves * tokens / 128})
    frame = pl.DataFrame(rows)
    profile = made(rows_of("prefill", frame), wanted=False)
    (group,) = groups_of("aic", [rows_of("prefill", frame)])
    shared = pl.col("heads").is_in([4, 8, 16, 32, 64])
    tried = held_out_points(group, profile).filter(shared)
    error = tried["error"].abs()  # asked by chunks alone: 8 and 32 %
    assert tried.height > 20 and error.median() < 0.01 and error.quantile(0.9) < 0.1


def test_a_dtype_may_have_fewer_values_of_m_and_a_grid_all_its_shapes() -> None:
    sizes = (512, 768, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168)
    rows = [{"dtype": dtype, "n": n, "k": k, "m": m, "ns": 5_000.0 + n * k * 1e-3 + m * n * k * 1e-6 * (1 + m % 3)}
            for dtype in ("bf16", "fp8") for n in sizes for k in sizes for m in (1, 2, 4, 8, 16, 33, 64, 129, 256, 512)]
    for all_shapes, kept in ((False, 8 * 8), (True, len(sizes) ** 2)):
        options = Options(m_knots=9, m_knots_of={"fp8": 4}, all_shapes=all_shapes)
        profile = build(BARE, "aic", [rows_of("linear", pl.DataFrame(rows))], "kvsim calibrate …", options)
        assert [(t.dtype, len(t.shapes), len(t.m)) for t in profile.curves.linear] == [
            ("bf16", kept, 9), ("fp8", kept, 4)]


@pytest.mark.parametrize("text", ["fp8", "fp8=", "fp8=x", "fp8=3", "fp9=30", "fp8=²", ","])
def test_knots_of_a_dtype_are_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(InputError, match="--m-knots-of is"):
        _knots_of(text)


def test_held_out_keys_are_answered_by_a_fallback() -> None:
    profile = made(rows_of("linear", linear_frame()), wanted=False)
    (group,) = groups_of("aic", [rows_of("linear", linear_frame())])
    tried = held_out_keys(group, profile)
    assert tried.height and "exact" not in set(tried["how"])


def test_no_table_saw_a_held_out_row() -> None:
    """Nonsense in the held-out rows changes nothing in the curves."""
    frame = decode_frame()
    unseen = held_out(frame, [*KEYS["decode"], *POINTS["decode"]])
    nonsense = frame.with_columns(ns=pl.when(pl.Series(unseen)).then(pl.col("ns") * 3).otherwise("ns"))
    assert made(rows_of("decode", frame)).curves == made(rows_of("decode", nonsense)).curves


def test_splits_depend_on_values_and_seed_only() -> None:
    frame = decode_frame()
    split = held_out(frame, KEYS["decode"] + POINTS["decode"])
    assert 0.12 < split.mean() < 0.28
    backwards = held_out(frame.reverse(), KEYS["decode"] + POINTS["decode"])
    assert (backwards[::-1] == split).all()
    assert (held_out(frame.head(40), KEYS["decode"] + POINTS["decode"]) == split[:40]).all()
    assert (held_out(frame, KEYS["decode"] + POINTS["decode"], seed=1) != split).any()
    whole = frame.with_columns(out=pl.Series(held_out(frame, KEYS["decode"])))
    assert whole.group_by(KEYS["decode"]).agg(pl.col("out").n_unique())["out"].to_list() == [1] * len(HEADS)


def test_the_split_is_the_one_that_profiles_were_shipped_with() -> None:
    frame = pl.DataFrame({"m": list(range(20)), "dtype": ["bf16"] * 20})
    assert np.flatnonzero(held_out(frame, ["dtype", "m"])).tolist() == PINNED


PINNED = [2, 3, 16, 17, 19]


def test_thinned_lines_keep_what_they_promise() -> None:
    x = np.geomspace(1, 4096, 40)
    y = 1 + 0.5 * np.sin(np.log(x))
    kept = knots(x, y, 0.02)
    assert len(kept) < 30
    assert np.abs(np.interp(x, x[kept], y[kept]) / y - 1).max() <= 0.02


def test_a_row_that_its_neighbours_predict_goes() -> None:
    x = np.array([1.0, 10.0, 100.0])
    table = ragged({n: (x, np.array([1.0, 1.1, 1.2]) + n / 100) for n in (1.0, 2.0, 3.0)}, 0.01)
    assert table.outer == (1.0, 3.0)


def test_holes_follow_the_course_of_like_kernels() -> None:
    course = np.array([1.0, 1.0, 3.0, 3.0])
    grid = np.array([course, 2 * course, [0.5, 0.5, np.nan, 1.5]])
    apart = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0]], dtype=float)
    assert filled(np.arange(4.0), grid, apart)[2, 2] == pytest.approx(1.5)  # a chord would say 1.0


def test_kernels_that_are_off_by_a_factor_are_outvoted() -> None:
    """One like kernel glitches at the hole, another beside it, and the kernel itself two places away."""
    course = np.array([1.0, 1.0, 1.0, 3.0, 3.0, 3.0, 3.0])
    grid = np.array([scale * course for scale in (1.0, 2.0, 1.5, 0.8, 0.5)])
    grid[4, 3] = np.nan
    grid[0, 3] *= 2.5
    grid[1, 4] *= 2.5
    grid[4, 5] *= 2.5
    apart = 1.0 - np.eye(5)
    full = filled(np.arange(7.0), grid, apart)
    assert full[4, 3] == pytest.approx(1.5, rel=0.01)
    assert full[4, 5] == pytest.approx(1.5, rel=0.01), "a row that stands out against both is no measurement"
    assert full[2].tolist() == grid[2].tolist(), "what was measured stays"


def test_a_cliff_of_one_kernel_is_no_glitch() -> None:
    grid = np.ones((6, 8))
    grid[0, 4:] = 2.0
    assert filled(np.arange(8.0), grid, 1.0 - np.eye(6)).tolist() == grid.tolist()


def test_shared_knots_pick_the_cliff() -> None:
    x = np.array([1.0, 32.0, 64.0, 65.0, 96.0, 128.0])
    grid = np.array([[1, 1, 1, 2, 2, 2], [2, 2, 2, 4, 4, 4]], dtype=float)
    assert tabulated.shared_knots(x, grid, 4) == [0, 2, 3, 5]


def test_experts_with_one_key_need_no_neighbours() -> None:
    form = MatmulForm(fixed_ns=40_000, flop_efficiency=0.4, byte_efficiency=0.8)
    frame = pl.DataFrame({"hidden": 4096, "inter": 14336, "experts": 8, "top_k": 2, "dtype": "bf16",
                          "m": [1, 8, 64, 512], "ns": [1e5, 3e5, 5e5, 9e5]})
    (curve,) = tabulated.moe_curves(frame, form, FACTS, "x", 0.0)
    assert curve.m == (1, 8, 64, 512)


def test_fused_steps_and_unequal_lengths_come_back() -> None:
    base = made(rows_of("decode", decode_frame()), wanted=False)
    places = list(product((16, 64, 256), (0, 1024), (1, 8, 64), (16, 512, 4096)))
    rows = pl.DataFrame([{**key(32, 8), "tokens": t, "context": c, "n": n, "attended": a, "ns": 1.0}
                         for t, c, n, a in places])
    apart = predict(base, "mixed", rows)
    rows = rows.with_columns(ns=apart * (1 + rows["n"].to_numpy() / 64))
    (curve,) = mixed_curves(rows, base, "aic-decode-bf16", 0.001)
    fused = base.model_copy(update={"curves": base.curves.model_copy(update={"mixed": (curve,)})})
    assert np.abs(predict(fused, "mixed", rows) / rows["ns"].to_numpy() - 1).max() < 0.01


def test_chunks_between_the_powers_of_two_become_knots() -> None:
    """A second grid, 1.5 times the first, on which every chunk costs half more than the powers of two suggest."""
    base = made(rows_of("decode", decode_frame()), wanted=False)
    first = product((16, 64, 256), (0, 1024), (1, 8), (16, 512, 4096))
    second = product((96, 384), (0, 1536), (1, 8), (768, 6144))
    rows = pl.DataFrame([{**key(32, 8), "tokens": t, "context": c, "n": n, "attended": a, "ns": 1.0}
                         for t, c, n, a in (*first, *second)])
    rows = rows.with_columns(ns=predict(base, "mixed", rows) * np.where(rows["tokens"].to_numpy() % 96 == 0, 1.5, 1.0))
    (curve,) = mixed_curves(rows, base, "aic-decode-bf16", 0.001)
    assert curve.tokens == (16, 64, 96, 256, 384)
    fused = base.model_copy(update={"curves": base.curves.model_copy(update={"mixed": (curve,)})})
    assert np.abs(predict(fused, "mixed", rows) / rows["ns"].to_numpy() - 1).max() < 0.01
    assert {ratio for plane in curve.ratio[2] for row in plane for ratio in row} == {1.5}, "at other lengths, too"


def test_alpha_of_known_unequal_lengths_comes_back() -> None:
    rows = [{"n": n, "mean": 1000, "longest": int(1000 * s), "ns_mean": 1e5, "ns_longest": 1e5 * s,
             "ns": 1e5 * (1 + 0.3 * (s - 1))} for n in (8, 64) for s in np.linspace(1.1, 4, 30)]
    table = skew_table(pl.DataFrame(rows))
    assert table.sequences == (8, 64) and table.skew == SKEWS
    assert np.allclose([row[1:] for row in table.alpha], 0.3, atol=0.02)


def test_what_was_there_stays_and_comes_first() -> None:
    first = made(rows_of("decode", decode_frame()), wanted=False)
    other = decode_frame().with_columns(ns=pl.col("ns") * 2, block_size=16)
    second = build(first, "lss", [rows_of("decode", other)], "again", Options(wanted=False))
    assert second.curves == first.curves and set(second.provenance) == {"aic-decode-bf16"}
