"""Cost and calibration: what a step's time is made of, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import streamlit as st
from kvsim_app import frame, physics
from kvsim_app.charts import cost as charts
from kvsim_app.frame import duration
from kvsim_app.session import selection, setup, sources

from kvsim.cost import CostModel, PartCost
from kvsim.device import DeviceProfile
from kvsim.precision import canonical
from kvsim.report.palette import TIERS
from kvsim.setup import Setup


def _policy_setup() -> Setup:
    """What prices the steps: a choice where policies differ in that. Those that cost a step alike stand together."""
    chosen = selection()
    found: dict[str, Setup] = {}
    for name in [name for name in chosen.policies if name != "uncached"] or ["paged"]:
        made = setup(chosen.base.replace(policy=name))
        like = next((names for names, other in found.items() if _alike(made.cost, other.cost)), None)
        if like:
            found[f"{like}, {name}"] = found.pop(like)
        else:
            found[name] = made
    names = list(found)
    if len(names) == 1:
        return found[names[0]]
    name = st.segmented_control(
        "Policy", names, default=names[-1], key="cost-policy", required=True, label_visibility="collapsed"
    )
    return found[name or names[-1]]


def _alike(one: CostModel, other: CostModel) -> bool:
    """Whether two cost models price a step of decodes and a chunk alike, part by part."""
    return one.parts(one.typical()) == other.parts(one.typical())


def page() -> None:
    place = st.container()
    made = _policy_setup()
    columns = st.columns(3)
    sequences = columns[0].slider("Sequences that decode", 1, 512, 32, key="cost-sequences")
    context = columns[1].select_slider(
        "Context of each", [2**i for i in range(7, 18)], 1024, key="cost-context", format_func=lambda x: f"{x:,}"
    )
    chunk = columns[2].select_slider(
        "Prefill chunk", [0, *(2**i for i in range(6, 14))], 512, key="cost-chunk", format_func=lambda x: f"{x:,}"
    )
    many = f"{sequences} sequence{'s' * (sequences > 1)}"
    steps = {
        "1 sequence": physics.decode_shape(made.model, 1, context),
        many: physics.decode_shape(made.model, sequences, context),
    }
    if chunk:
        steps[f"{many} and a chunk of {chunk}"] = physics.decode_shape(made.model, sequences, context, chunk)
    parts = {name: made.cost.parts(shape) for name, shape in steps.items()}
    last = list(steps)[-1]
    total = sum(cost.ns for cost in parts[last].values())
    most = max(parts[last], key=lambda name: parts[last][name].ns)
    band = made.cost.error_band(steps[last])
    with place:
        frame.header(
            "Cost and calibration",
            (
                f"A step of **{last}** takes **{duration(total / 1e9)}** ({duration(total * band.low / 1e9)} to "
                f"{duration(total * band.high / 1e9)} with 90 %), {parts[last][most].ns / total:.0%} of it in "
                f"**{charts.part_name(most)}**."
            ),
        )
        frame.trust(step=(sources(made.cost, steps[last]), band))
    frame.show(
        charts.parts(parts),
        "cost-parts",
        "Where a step's time goes",
        "Each term comes from a curve of the device profile, or from its physical form where nothing is measured.",
    )
    table = _table(parts[last])
    left, right = st.columns(2)
    with left:
        kv = made.spec.precision
        weights = canonical(made.scenario.weights_dtype or made.model.weights_dtype)
        dots = physics.roofline_dots(
            made.cost, made.model, steps, weights, "bf16" if kv == "auto" else kv, made.scenario.tp
        )
        frame.show(
            charts.roofline(made.device.facts, "bf16", dots),
            "cost-roofline",
            "Roofline",
            "Grey: what the data sheet allows, bandwidth on the slope and FLOP/s on the level. Points: what the "
            "cost model says each term reaches.",
        )
    with right:
        st.markdown(f"**Parts of: {last}**")
        st.dataframe(
            table,
            hide_index=True,
            width="stretch",
            column_config={
                "share": st.column_config.NumberColumn(format="percent"),
                "median error": st.column_config.NumberColumn(format="percent"),
                "95 % within": st.column_config.NumberColumn(format="percent"),
            },
        )
    _calibration(made.device)
    frame.download(table, "cost")


def _table(parts: Mapping[str, PartCost]) -> pl.DataFrame:
    total = sum(cost.ns for cost in parts.values()) or 1.0
    return pl.DataFrame(
        [
            {
                "part": charts.part_name(name),
                "time": duration(cost.ns / 1e9),
                "share": cost.ns / total,
                "tier": cost.tier,
                "found by": cost.how,
                "median error": cost.error_median,
                "95 % within": cost.error_p95,
                "source": cost.source,
            }
            for name, cost in parts.items()
        ]
    )


def _calibration(device: DeviceProfile) -> None:
    st.markdown(f"#### {device.name}: measured against predicted")
    st.markdown(TIERS[device.tier])
    if not device.curves.sources():
        st.info(
            "This profile has no measured points, so there is nothing to hold predictions against. "
            "`kvsim calibrate` measures a GPU and writes a profile that has.",
            icon=":material/info:",
        )
        return
    rows = []
    for name, origin in device.provenance.items():
        for what, error in (
            ("points", origin.points),
            ("whole shapes", origin.keys),
            ("interpolated shapes", origin.fallback.interpolated),
            ("form alone", origin.fallback.form),
        ):
            if error is not None:
                rows.append(
                    {
                        "source": name,
                        "held out": what,
                        "rows": error.rows,
                        "median error": error.median,
                        "95 % within": error.p95,
                        "bias": error.bias,
                        "data": origin.source,
                        "licence": origin.licence or "–",
                    }
                )
    if rows:
        st.dataframe(
            pl.DataFrame(rows, infer_schema_length=None),
            hide_index=True,
            width="stretch",
            column_config={
                key: st.column_config.NumberColumn(format="percent") for key in ("median error", "95 % within", "bias")
            },
        )
    families = [f for f in ("decode attention", "prefill attention", "linear layers") if physics.knots(device, f)[1]]
    if not families:
        return
    family = (
        st.segmented_control("Kernel", families, default=families[0], key="cost-family", required=True) or families[0]
    )
    axis, points = physics.knots(device, family)
    frame.show(
        charts.ratios(axis, points),
        "cost-ratios",
        f"{family}: what was measured, over the physical form",
        "1 would be the form alone. Predictions interpolate linearly between these points.",
    )


page()
