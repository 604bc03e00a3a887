"""Calculator: bytes a token, and how many requests of which length fit. No simulation, instant."""

from __future__ import annotations

import polars as pl
import streamlit as st
from kvsim_app import frame, quality
from kvsim_app.charts.calculator import BATCHES, CONTEXTS, heat_map
from kvsim_app.session import selection

from kvsim.device import catalogue, load_device
from kvsim.engine_profile import engine_names, load_engine
from kvsim.errors import InputError
from kvsim.memory import plan_memory
from kvsim.model import load_model, model_names
from kvsim.report.charts.memory import plan as plan_chart
from kvsim.units import format_bytes

_DTYPES = ["bf16", "fp8", "int8", "int4"]


def page() -> None:
    place = st.container()
    base = selection().base
    row = st.columns([2.6, 2, 1, 1.2, 2, 1.6])
    models, devices = model_names(), catalogue()
    name = row[0].selectbox("Model", models, models.index(base.model), key="calc-model")
    device = row[1].selectbox("Device", devices, devices.index(base.device), key="calc-device")
    tp = row[2].selectbox("GPUs", [1, 2, 4, 8, 16], key="calc-tp", help="Tensor parallel: GPUs that share one copy.")
    kv = row[3].selectbox("KV cache", _DTYPES, key="calc-kv", help="Precision of the cache; scales are counted.")
    weights = row[4].selectbox("Weights", ["as published", *_DTYPES], key="calc-weights")
    engine = row[5].selectbox("Engine", engine_names(), key="calc-engine", help="Whose rules divide the memory.")
    model, gpu = load_model(name), load_device(device)
    try:
        plan = plan_memory(
            model,
            gpu,
            load_engine(engine),
            tp=tp,
            kv_dtype=kv,
            weights_dtype=None if weights == "as published" else weights,
        )
    except InputError as error:
        st.error(str(error), icon=":material/error:")
        return
    with place:
        if plan.fits:
            frame.header(
                "Calculator",
                (
                    f"A token takes **{format_bytes(plan.kv_bytes_per_token * tp)}** on {_gpus(tp)}, so "
                    f"**{plan.tokens:,} tokens** fit beside the weights: {plan.max_concurrency:,.1f} requests of "
                    f"{plan.max_model_len:,} tokens at once."
                ),
            )
        else:
            frame.header("Calculator", f"{name} does not fit: {plan.reason}")
        st.markdown(
            ":green-badge[:material/calculate: exact counts] Sizes follow from the model's shape and the "
            f"engine's rules; the pool is known to ± {format_bytes(plan.spread)} (90 %)."
        )
        for cost in quality.of_kind(kv):
            st.caption(f"A cache in {kv} changes answers: perplexity **{cost.text}**. {quality.source(kv)}")
    columns = st.columns(4)
    columns[0].metric(
        "KV bytes a token, each GPU",
        format_bytes(plan.kv_bytes_per_token),
        help="2 · layers · KV heads · head size · bytes, split over the GPUs; MLA keeps one latent row.",
    )
    columns[1].metric("Weights, each GPU", format_bytes(plan.weights))
    columns[2].metric("KV pool, each GPU", format_bytes(max(plan.pool, 0)))
    columns[3].metric("Tokens that fit", f"{plan.tokens:,}" if plan.fits else "none")
    if plan.fits:
        frame.show(
            heat_map(model, plan.pool, kv, tp),
            "calc-heat",
            "Share of the pool that equal requests take",
            "Dark: plenty of room. Yellow: nearly full. 'no': it does not fit.",
        )
    frame.show(plan_chart({device: plan.to_json()}), "calc-plan", "One GPU")
    frame.download(
        pl.DataFrame(
            [
                {
                    "requests": batch,
                    "context_tokens": context,
                    "bytes_per_gpu": batch * model.kv_bytes_per_request(context, kv, tp),
                    "pool_bytes": plan.pool,
                }
                for batch in BATCHES
                for context in CONTEXTS
            ]
        ),
        "calculator",
    )


def _gpus(tp: int) -> str:
    return "one GPU" if tp == 1 else f"{tp} GPUs"


page()
