"""The sidebar: the scenario as a form. Its fields, help and defaults are those of `kvsim simulate`."""

from __future__ import annotations

from typing import Any

import streamlit as st

from kvsim.cache.policies import POLICIES
from kvsim.cache.spec import EVICTIONS, LAYOUTS, PREFIXES, PRESSURES
from kvsim.device import catalogue
from kvsim.engine_profile import engine_names
from kvsim.errors import InputError
from kvsim.model import model_names
from kvsim.precision import FORMATS
from kvsim.scenario import fields, make
from kvsim.sched import SCHEDULERS
from kvsim.trace.presets import PRESETS as TRAFFIC
from kvsim_app.presets import PRESETS
from kvsim_app.selection import DEFAULTS, MOST, Selection
from kvsim_app.session import choose, refuse, selection, store

_MAIN = ("trace", "duration", "model", "device", "tp", "policy")
_CHOICES: dict[str, list[str]] = {
    "layout": list(LAYOUTS), "prefix": list(PREFIXES), "eviction": list(EVICTIONS), "on_pressure": list(PRESSURES),
    "kv_dtype": ["bf16", "fp16", "fp8", "int8", "int4"], "attention": ["flash", "naive"],
    "weights_dtype": list(FORMATS), "engine": engine_names(), "scheduler": SCHEDULERS.names(),
    "scheduling_policy": ["fcfs", "priority"], "on_failure": ["retry", "lose"],
}  # fmt: skip
_OWN = "My own settings"


def sidebar() -> None:
    """Draw the form; `Run` makes it the selection."""
    with st.sidebar:
        now = selection()
        # Another selection (a preset, a link) is another form: its fields start from there.
        mark = f"{hash(now) & 0xFFFFFF:06x}"
        _presets(now, f"preset-{mark}")
        with st.form(f"scenario-{mark}", border=False):
            values = _main_fields(now, mark)
            policies = st.multiselect(
                "Policies",
                POLICIES.names(),
                list(now.policies),
                max_selections=MOST,
                key=f"policies-{mark}",
                help=_policy_help(),
            )
            folders = _picker(now, mark)
            with st.expander("All settings"):
                values |= _other_fields(now, mark)
            run = st.form_submit_button(
                "Run", key=f"run-{mark}", type="primary", icon=":material/play_arrow:", width="stretch"
            )
        if run:
            _submit(values, policies, folders)


def _presets(now: Selection, key: str) -> None:
    """A choice of starting points; "own settings" is among them only while nothing else is true."""
    current = next((name for name, preset in PRESETS.items() if preset.selection == now), _OWN)

    def take() -> None:
        if (name := st.session_state[key]) in PRESETS:
            choose(PRESETS[name].selection)

    st.selectbox("Preset", *_options(list(PRESETS), current), key=key, on_change=take,
                 help="A starting point: traffic, model, device and policies together.")  # fmt: skip


def _submit(values: dict[str, Any], policies: list[str], folders: list[str]) -> None:
    given = {name: value for name, value in values.items() if value not in (None, "")}
    try:
        if not policies and not folders:
            raise InputError("Choose at least one policy, or a run of the results folder.")
        if len(policies) + len(folders) > MOST:
            raise InputError(f"At most {MOST} runs fit beside each other: choose fewer policies or folders.")
        chosen = Selection(make(given), tuple(policies), tuple(folders))
        for scenario in chosen.scenarios().values():
            refuse(scenario)
    except InputError as error:
        st.error(str(error), icon=":material/error:")
        return
    choose(chosen)
    st.rerun()


def _main_fields(now: Selection, mark: str) -> dict[str, Any]:
    base = now.base
    traffic = ["sample", *(f"synth:{name}" for name in TRAFFIC), *store().uploads()]
    help_of = {name: field.description for name, field in fields().items()}
    values: dict[str, Any] = {
        "trace": st.selectbox(
            "Traffic",
            *_options(traffic, base.trace),
            key=f"trace-{mark}",
            format_func=_traffic_name,
            help="The bundled hour of chat, made-up traffic with published statistics, or your own "
            "from the Trace explorer.",
        ),
    }
    left, right = st.columns(2)
    with left:
        values["duration"] = st.text_input(
            "Duration", base.duration or "", key=f"duration-{mark}", placeholder="all of it", help=help_of["duration"]
        )
    with right:
        values["rate_scale"] = st.number_input(
            "Rate ×",
            0.01,
            1000.0,
            float(base.rate_scale),
            0.25,
            "%.2f",
            key=f"rate_scale-{mark}",
            help=help_of["rate_scale"],
        )
    values["model"] = st.selectbox(
        "Model", *_options(model_names(), base.model), key=f"model-{mark}", help=help_of["model"]
    )
    left, right = st.columns([2, 1])
    with left:
        values["device"] = st.selectbox(
            "Device", *_options(catalogue(), base.device), key=f"device-{mark}", help=help_of["device"]
        )
    with right:
        values["tp"] = st.number_input("GPUs", 1, 64, base.tp, key=f"tp-{mark}", help=help_of["tp"])
    return values


def _picker(now: Selection, mark: str) -> list[str]:
    """Runs that the command line wrote into the results folder."""
    found = store().runs()
    known = [*found, *(name for name in now.folders if name not in found)]
    return st.multiselect(
        "Recorded runs",
        known,
        list(now.folders),
        max_selections=MOST,
        key=f"folders-{mark}",
        placeholder="none" if known else "no folder yet",
        help=f"Result folders in {store().root}: written by `kvsim simulate --out` or `kvsim measure`.",
    )


def _other_fields(now: Selection, mark: str) -> dict[str, Any]:
    """Every other field of the Scenario, grouped as in `kvsim simulate --help`."""
    values: dict[str, Any] = {}
    panel = ""
    for name, field in fields().items():
        if name in (*_MAIN, "rate_scale", "speculative"):  # the last one takes nothing yet
            continue
        extra: Any = field.json_schema_extra
        if extra["panel"] != panel:
            panel = extra["panel"]
            st.caption(f"**{panel}**")
        label, value, key = name.replace("_", " "), getattr(now.base, name), f"{name}-{mark}"
        if isinstance(value, bool):
            values[name] = st.checkbox(label, value, key=key, help=field.description)
        elif name in _CHOICES:
            unset = extra["default"] or "the policy's"
            values[name] = st.selectbox(
                label,
                *_options([*([""] if field.default is None else []), *_CHOICES[name]], value or ""),
                key=key,
                format_func=lambda said, unset=unset: said or unset,
                help=field.description,
            )
        else:
            values[name] = st.text_input(
                label,
                "" if value is None else str(value),
                key=key,
                placeholder=extra["default"] or "",
                help=field.description,
            )
    return values


def _options(known: list[str], value: str) -> tuple[list[str], int]:
    options = known if value in known else [*known, value]
    return options, options.index(value)


def _traffic_name(trace: str) -> str:
    if trace == DEFAULTS["trace"]:
        return "sample: an hour of chat"
    return trace.removeprefix("uploads/").replace("synth:", "made up: ")


def _policy_help() -> str:
    return "  \n".join(f"**{name}**: {spec.about}" for name, spec in POLICIES.items())
