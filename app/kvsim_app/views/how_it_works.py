"""How it works: the KV cache from the start, a chapter an idea, each with something to move."""

from __future__ import annotations

import numpy as np
import polars as pl
import streamlit as st
from kvsim_app import frame, lessons, physics, quality
from kvsim_app.charts import cost as cost_charts
from kvsim_app.charts import lesson
from kvsim_app.charts.quality import perplexity
from kvsim_app.frame import duration
from kvsim_app.measured import measured
from kvsim_app.session import selection, setup, step_error, store
from streamlit.delta_generator import DeltaGenerator

from kvsim.cost import CostModel
from kvsim.precision import FORMATS
from kvsim.setup import Setup
from kvsim.units import format_bytes


def page() -> None:
    chapters = {
        "1 · Why a cache": why,
        "2 · n² against n": race,
        "3 · It grows": growth,
        "4 · Paging": paging,
        "5 · Sharing": sharing,
        "6 · Quantizing": quantizing,
        "7 · Evicting": evicting,
        "8 · Flash": flash,
    }
    place = st.container()
    names = list(chapters)
    name = (
        st.pills("Chapter", names, default=names[0], key="chapter", label_visibility="collapsed", required=True)
        or names[0]
    )
    model, base = _made(), selection().base
    with place:
        st.subheader("How it works", anchor=False)
    chapters[name](model)
    shares, band = step_error(base.replace(policy="paged"))
    tiers = ", ".join(f"{share:.0%} {tier}" for tier, share in shares.items() if share >= 0.005)
    st.caption(
        f"For **{base.model}** on **{base.device}**, as set in the sidebar. Times are the cost model's: of a typical "
        f"step **{tiers}**, {frame.interval(band)} (90 %)."
    )


def _made() -> Setup:
    return setup(selection().base.replace(policy="paged"))


def why(made: Setup) -> None:
    left, right = st.columns([2, 1])
    tokens = left.slider("Tokens to produce", 4, 15, 10, key="why-n")
    now = right.slider("Step", 1, tokens, tokens, key="why-now")
    again = now * (now + 1) // 2
    st.markdown(f"#### After {now} steps a model without a cache has computed {again} tokens, with one {now}.")
    st.markdown(
        "A language model writes one token at a time, and each new token **attends** to all earlier ones: it needs "
        "their *keys* and *values*. These never change once a token stands. Without a cache they are computed again in "
        "every step; with one, a step computes its own token and reads the rest."
    )
    left, right = st.columns(2)
    with left:
        frame.show(lesson.steps(tokens, now, False), "why-without", f"Without a cache: {again} computed")
    with right:
        frame.show(lesson.steps(tokens, now, True), "why-with", f"With a cache: {now} computed")


def race(made: Setup) -> None:
    columns = st.columns([2, 2, 1])
    most = made.memory.max_model_len // 2  # half for the prompt, half for the answer
    prompt = _lengths(columns[0], "Prompt", [1, 128, 512, 2048, 8192], 512, most, "prompt")
    outputs = _lengths(columns[1], "Tokens to produce", [64, 256, 1024, 4096], 1024, most, "n")
    log = columns[2].toggle("Logarithmic", key="race-log")
    tokens, cached, uncached = physics.cached_and_uncached(made.cost, made.model, prompt, outputs)
    st.markdown(
        f"#### {outputs:,} tokens take {duration(cached[-1])} with a cache and {duration(uncached[-1])} without: "
        f"{uncached[-1] / cached[-1]:.3g} × as long."
    )
    st.markdown(
        "Without a cache step *i* is a forward pass over all *p + i* tokens so far, so the work adds up to **O(n²)**, "
        "and attention inside each pass adds a cubic part. With a cache a step is one token, **O(n)** in all, and "
        "reading the weights, which costs the same in each step, hides how small the rest is. For very short texts the "
        "two are close: a GPU runs a few tokens as fast as one."
    )
    frame.show(lesson.race(tokens, cached, uncached, log), "race", "Time of one request, alone on the device")
    _measured(log)
    axis, knots = physics.knots(made.device, "decode attention")
    if knots:
        frame.show(
            cost_charts.ratios(axis, knots),
            "race-measured",
            "Measured points behind the decode steps",
            "Time of the attention kernel over what its bytes and bandwidth alone would say.",
        )
    else:
        st.info(
            "This device's profile has no measured points: the curves above are physical forms with data-sheet "
            "numbers.",
            icon=":material/info:",
        )
    frame.download(pl.DataFrame({"tokens": tokens, "with_cache_s": cached, "without_cache_s": uncached}), "race")


def _lengths(column: DeltaGenerator, label: str, options: list[int], start: int, most: int, key: str) -> int:
    """A choice of token counts, those that the model can hold."""
    held = [length for length in options if length <= most] or [most]
    if len(held) == 1:
        column.metric(label, f"{held[0]:,}")
        return held[0]
    return column.select_slider(label, held, min(start, held[-1]), key=f"race-{key}")


def _measured(log: bool) -> None:
    """The same race, timed: by the reference engine, on a device that somebody had."""
    found = {one.what: one for one in measured(store())}
    names = list(found)
    name = st.selectbox("Measured", names, key="race-file") if len(names) > 1 else names[0]
    one = found[name]
    tokens = np.arange(1.0, len(one.cached) + 1)
    ratio = one.uncached[-1] / one.cached[-1]
    frame.show(
        lesson.race(tokens, one.cached, one.uncached, log, points=True),
        "race-timed",
        f"Measured: {len(tokens)} tokens take {ratio:.2g} × as long without a cache",
        "By kvsim's reference engine with random weights: `kvsim calibrate generation PROFILE` measures your own "
        "device; put its NAME.generation.json into the results folder.",
    )
    st.caption(f":green-badge[:material/verified: measured] {name}")


def growth(made: Setup) -> None:
    model, tp = made.model, made.scenario.tp
    columns = st.columns(2)
    batch = columns[0].select_slider("Requests at once", [1, 2, 4, 8, 16, 32, 64, 128, 256], 32, key="growth-batch")
    context = columns[1].select_slider(
        "Context",
        [1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072],
        8192,
        key="growth-context",
        format_func=lambda x: f"{x:,}",
    )
    each = model.kv_bytes_per_request(context, "bf16", tp)
    room = made.memory.pool
    st.markdown(
        f"#### {batch} requests of {context:,} tokens keep {format_bytes(each * batch)}: "
        + (f"{each * batch / room:.0%} of the room." if each * batch <= room else "more than there is.")
    )
    group = model.attention_groups[0]
    st.markdown("The cache grows by the same bytes with **every token of every request**:")
    if group.latent:
        st.latex(
            rf"\text{{bytes a token}} = \underbrace{{{model.layers}}}_{{layers}} \cdot "
            rf"\underbrace{{{group.head_dim}}}_{{latent\ row}} \cdot 2\ \text{{bytes}}"
        )
    else:
        st.latex(
            rf"\text{{bytes a token}} = 2 \cdot \underbrace{{{model.layers}}}_{{layers}} \cdot "
            rf"\underbrace{{{group.kv_heads}}}_{{KV\ heads}} \cdot \underbrace{{{group.head_dim}}}_{{head\ size}} "
            rf"\cdot 2\ \text{{bytes}} = {model.kv_bytes_per_token('bf16'):,}"
        )
    contexts = list(range(0, context * 2 + 1, max(context // 16, 1)))
    sizes = [model.kv_bytes_per_request(c, "bf16", tp) for c in contexts]
    batches = sorted({1, max(batch // 4, 1), batch, batch * 2})
    frame.show(lesson.growth(contexts, sizes, batches, room), "growth", "KV cache of one GPU")


def paging(made: Setup) -> None:
    columns = st.columns(3)
    layout = (
        columns[0].segmented_control(
            "Layout", ["contiguous", "paged"], default="contiguous", key="paging-layout", required=True
        )
        or "contiguous"
    )
    now = columns[1].slider("Tokens so far", 1, max(lessons.ANSWERS), 6, key="paging-now")
    block = columns[2].select_slider(
        "Block size", [1, 2, 4, 8, 16], 4, key="paging-block", disabled=layout == "contiguous"
    )
    cells, admitted = lessons.toy_pool(layout == "paged", block, 24, now)
    held = sum(state == "holds a token" for _, state in cells)
    taken = sum(state != "free" for _, state in cells)
    st.markdown(
        f"#### {admitted} of {len(lessons.ANSWERS)} requests found room; {held} of the {taken} slots they hold "
        "have a token in them."
    )
    st.markdown(
        "Nobody knows how long an answer will be. A **contiguous** cache keeps room for the longest one: most of it is "
        "never filled (*internal* waste), some waits to be filled (*reserved*), and what is left between requests may "
        "be too small to use (*external*). **Paging** hands out small blocks as a request grows and finds them by a "
        "block table: at most one block a request is partly empty."
    )
    frame.show(
        lesson.pool(cells, 24),
        "paging",
        f"A pool of {lessons.SLOTS} slots, six requests of {', '.join(map(str, lessons.ANSWERS))} tokens",
    )
    st.caption(" · ".join(f"{mark} {state}" for state, mark in lesson.STATES.items() if mark))


def sharing(made: Setup) -> None:
    columns = st.columns(3)
    users = columns[0].slider("Requests", 1, 200, 50, key="share-users")
    system = columns[1].slider("Shared beginning, tokens", 0, 8000, 2000, 100, key="share-system")
    own = columns[2].slider("Own tokens", 50, 4000, 500, 50, key="share-own")
    size = made.model.kv_bytes_per_token("bf16", made.scenario.tp)
    apart, together = users * (system + own) * size, (system + users * own) * size
    cold = made.cost.step(physics.prefill_shape(min(system + own, made.memory.max_model_len))) / 1e9
    warm = made.cost.step(physics.prefill_shape(own)) / 1e9
    st.markdown(
        f"#### Sharing keeps {format_bytes(together)} instead of {format_bytes(apart)}: "
        f"{1 - together / apart:.0%} saved, and a first token after {duration(warm)} instead of "
        f"{duration(cold)} of prefill."
    )
    st.markdown(
        "Requests that begin alike (a system prompt, a document, the conversation so far) have **the same** keys and "
        "values there. A block with equal contents before it is stored once, counted by its users, and copied when one "
        "of them writes to it. It also saves the work: what is found is not computed."
    )
    frame.show(
        lesson.bars(
            ["each its own", "shared"],
            [apart, together],
            [format_bytes(apart), format_bytes(together)],
            "KV cache",
            True,
        ),
        "sharing",
        "Memory on one GPU",
    )


def quantizing(made: Setup) -> None:
    columns = st.columns(2)
    batch = columns[0].select_slider("Requests at once", [1, 4, 16, 32, 64, 128], 32, key="quant-batch")
    context = columns[1].select_slider("Context", [512, 2048, 8192, 32768], 8192, key="quant-context")
    names = ["bf16", "fp8", "int8", "int4"]
    sizes = {n: made.model.kv_bytes_per_token(n, made.scenario.tp) for n in names}
    fits = {n: made.memory.pool // sizes[n] for n in names}
    times = {n: _cost(made, n).step(physics.decode_shape(made.model, batch, context)) / 1e9 for n in names}
    st.markdown(
        f"#### int8 fits {fits['int8'] / fits['bf16']:.2f} × the tokens of bf16, and a step takes "
        f"{times['int8'] / times['bf16']:.2f} × its time."
    )
    st.markdown(
        "Numbers of the cache can be stored in 8 or 4 bits. int8 keeps a scale for each token and head, int4 a scale "
        "and a zero for each 32 numbers, so **half the bytes is not quite half**. And half the bytes is **not half the "
        "time**: weights, launches and the conversion stay. Fewer bits also change the answers a little."
    )
    left, right = st.columns(2)
    with left:
        frame.show(
            lesson.bars(names, list(fits.values()), [f"{n:,}" for n in fits.values()], "tokens that fit"),
            "quant-fit",
            "Room",
        )
    with right:
        frame.show(
            lesson.bars(names, [t * 1e3 for t in times.values()], [duration(t) for t in times.values()], "ms a step"),
            "quant-time",
            f"Time of a decode step, {batch} × {context:,} tokens",
        )
    st.caption(" · ".join(f"{n}: {FORMATS[n].bits} bits, {format_bytes(sizes[n])} a token" for n in names))
    _answers("fp8", "int8", "int4")


def _answers(*kinds: str) -> None:
    """What these policies cost in quality, as measured."""
    rows = quality.of_kind(*kinds)
    frame.show(
        perplexity(rows, kinds),
        "answers",
        "Measured: what it costs in answers",
        "Perplexity says how unsure the model is of the right next token; hover to see how often that token stays the "
        "same and how many facts hidden in a long text are still found. `kvsim accuracy` measures it.",
    )
    st.caption(f":green-badge[:material/verified: measured] {quality.source(*kinds)}")


def _cost(made: Setup, kv_dtype: str, attention: str = "flash") -> CostModel:
    return CostModel.of(
        made.model,
        made.device,
        made.cost.host,
        tp=made.scenario.tp,
        weights_dtype=made.scenario.weights_dtype,
        kv_dtype=kv_dtype,
        attention="naive" if attention == "naive" else "flash",
    )


def evicting(made: Setup) -> None:
    columns = st.columns(2)
    context = columns[0].slider("Tokens so far", 10, 96, 64, key="evict-context")
    budget = columns[1].slider("Budget", 8, 64, 24, key="evict-budget")
    prompt = min(40, context)
    kept = lessons.kept(context, budget, prompt)
    counts = {name: sum(why != "dropped" for why in row) for name, row in kept.items()}
    st.markdown(
        f"#### Of {context} tokens, streaming keeps {counts['streaming']}, H2O {counts['h2o']} and SnapKV "
        f"{counts['snapkv']}."
    )
    st.markdown(
        "Dropping tokens makes the cache **stop growing**. *Streaming* keeps the first few (attention sinks) and the "
        "latest. *H2O* keeps the latest and those that got most attention so far, and pays for keeping the score. "
        "*SnapKV* cuts the prompt once, when it ends, and keeps the answer whole. What is dropped can't be looked at "
        "again: that is the risk."
    )
    frame.show(lesson.strip(kept), "evicting", f"What is still in the cache (the first {prompt} tokens are the prompt)")
    st.caption("Which tokens are heavy hitters is the model's choice; here they are spread evenly, to illustrate.")
    _answers("streaming", "h2o", "snapkv")


def flash(made: Setup) -> None:
    length = st.select_slider(
        "Prompt", [2**i for i in range(9, 18)], 8192, key="flash-n", format_func=lambda x: f"{x:,}"
    )
    naive, fused = _cost(made, "bf16", "naive"), made.cost
    lengths = [2**i for i in range(9, length.bit_length())]
    shapes = [physics.prefill_shape(n) for n in lengths]
    matrix = [naive.workspace_bytes(shape) for shape in shapes]
    output = [2 * n * made.model.hidden for n in lengths]
    slow, fast = (cost.step(shapes[-1]) / 1e9 for cost in (naive, fused))
    room = made.memory.pool
    st.markdown(
        f"#### For {length:,} tokens the score matrix takes {format_bytes(matrix[-1])}"
        + (", more than the whole KV pool" if matrix[-1] > room else "")
        + f"; prefill {duration(slow)} naive, {duration(fast)} fused."
    )
    st.markdown(
        "Attention compares every token with every other: an **S × S matrix** for each head. Written to memory, it "
        "grows with the square of the prompt and is read back twice. **FlashAttention** works on tiles that stay on "
        "the chip and keeps only a running maximum and sum: the matrix never exists."
    )
    left, right = st.columns(2)
    with left:
        frame.show(
            lesson.lines(lengths, {"S × S scores": matrix, "output alone": output}, "prompt tokens", "memory"),
            "flash-memory",
            "Memory of one layer's attention",
        )
    with right:
        times = {
            name: [cost.step(shape) / 1e9 for shape in shapes] for name, cost in (("naive", naive), ("flash", fused))
        }
        frame.show(
            lesson.lines(lengths, times, "prompt tokens", "time of the prefill", "seconds"),
            "flash-time",
            "Time of a whole prefill",
        )


page()
