"""Every field of the sidebar's form: what is put in is in the address after Run, or one sentence says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from app_controls import MAIN, QUERY, address, controls, every, start_of
from kvsim_app.jobs import Pool
from kvsim_app.presets import PRESETS
from kvsim_app.store import Store
from streamlit.testing.v1 import AppTest

from kvsim.cache.policies import POLICIES
from kvsim.model import model_names
from kvsim.scenario import fields

TEXTS: dict[str, tuple[str, str]] = {
    "duration": ("30s", "soon"), "trace_format": ("azure", "azur"), "arrivals": ("poisson:2", "x"),
    "rate": ("3.5", "-1"), "scale_lengths": ("0.5", "0"), "start": ("10s", "x"), "samples": ("2", "0"),
    "limit": ("7", "x"), "block_size": ("32", "0"), "retention": ("window:sinks=4,recent=508", "x"),
    "tier": ("host:8GiB", "x"), "pp": ("2", "0"), "ep": ("2", "3"), "replicas": ("2", "0"),
    "router": ("least-loaded", "x"), "mix": ("l40s:1", "x:1"), "prefill_replicas": ("1", "0"),
    "transfer": ("50GB", "pcie"), "failures": ("0@1s-2s", "x"),
    "autoscale": ("1-2", "x"), "max_num_seqs": ("8", "0"), "max_num_batched_tokens": ("512", "0"),
    "long_prefill_token_threshold": ("256", "-1"), "max_model_len": ("4096", "0"),
    "gpu_memory_utilization": ("0.8", "2"), "seed": ("3", "x"),
    "max_stride": ("1", "0"),
}  # fmt: skip
"""text field → what it takes, and what it refuses"""
NAMES = {"trace": "synth:chatt", "model": "llama-99", "device": "h101", "engine": "vlm-1", "scheduler": "chunkd",
         "arrivals": "x", "router": "robin", "mix": "h101:2", "transfer": "x", "failures": "x",
         "autoscale": "x"}  # fmt: skip
NEEDS: dict[str, dict[str, str]] = {
    "tier": {"policies": "paged-prefix"}, "on_pressure": {"policies": "paged-prefix", "tier": "host:8GiB"},
    "ep": {"model": "mixtral-8x7b", "tp": "2"}, "prefill_replicas": {"replicas": "2"},
}  # fmt: skip
"""what else is in the address for a field to be taken"""
REFUSED = {("device", "cpu"), ("attention", "naive"), ("engine", "sglang"), ("scheduler", "sglang"),
           ("prefix", "radix"), ("tp", 64)}  # fmt: skip
"""places that do not go with the rest of the form, or where the model does not fit"""
ALONE = ("model", "policies", "folders", "preset", "run")
"""fields with a test of their own"""
FIELDS = [name for name in fields() if name not in (*ALONE, "policy", "speculative")]


def script() -> None:
    from kvsim_app import session
    from kvsim_app.sidebar import sidebar

    session.sync()
    sidebar()


def opened(**address: str) -> AppTest:
    app = AppTest.from_function(script, default_timeout=60)
    app.query_params.update(QUERY | {"policies": "paged"} | address)
    return app.run()


@pytest.fixture(autouse=True)
def folder(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSIM_RESULTS", str(store.root))


def of(form: AppTest) -> dict[str, Any]:
    """The sidebar's controls by the name of their field."""
    return {key.rpartition("-")[0]: element for key, element in controls(form.sidebar).items()}


def put(form: AppTest, name: str, value: Any) -> None:
    """Fill in one field and press Run."""
    of(form)[name].set_value(value)
    of(form)["run"].click().run()
    assert not form.exception


def test_every_control_of_the_form_is_tested() -> None:
    found = of(opened())
    assert set(found) == {*FIELDS, *ALONE}
    assert {name for name in FIELDS if found[name].type == "text_input"} == set(TEXTS)


@pytest.mark.parametrize("name", FIELDS)
def test_field_is_taken_or_refused_in_a_sentence(name: str) -> None:
    def form() -> AppTest:
        return opened(**NEEDS.get(name, {}))

    first = of(form())[name]
    start, places = start_of(first), TEXTS.get(name) or every(first)
    for place in (place for place in places if place is not None and place != start):
        app = form()
        before = address(app)
        put(app, name, place)
        if (name, place) in REFUSED or (name in TEXTS and place == TEXTS[name][1]):
            assert len(app.error) == 1 and app.error[0].value.strip()
            assert address(app) == before and start_of(of(app)[name]) == place, "what was typed is still there"
        else:
            assert not app.error, f"{name} {place}: {app.error[0].value}"
            now = address(app)
            assert {key for key in now.keys() | before.keys() if now.get(key) != before.get(key)} == {name}
            assert start_of(of(app)[name]) == place, "the form shows what is looked at"


@pytest.mark.parametrize(("name", "value"), NAMES.items())
def test_what_a_link_has_wrong_is_said_on_the_page_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str
) -> None:
    monkeypatch.setenv("KVSIM_RESULTS", str(tmp_path))
    monkeypatch.setattr(Pool, "_serve", lambda pool: None)  # what is not refused is waited for, for ever
    app = AppTest.from_file(str(MAIN), default_timeout=60)
    app.query_params.update(QUERY | {name: value})
    app.run().switch_page("views/compare.py").run()
    assert not app.exception and len(app.error) == 1
    assert ("did you mean" in app.error[0].value) is (value != "x"), app.error[0].value


def test_models_are_those_of_the_catalogue() -> None:
    form = opened()
    assert of(form)["model"].options == model_names()
    put(form, "model", "qwen2.5-7b")
    assert not form.error and address(form)["model"] == "qwen2.5-7b"
    put(form, "model", "llama-3.1-405b")
    assert "doesn't fit" in form.error[0].value and address(form)["model"] == "qwen2.5-7b"


def test_policies_and_recorded_runs_are_compared_four_at_most_and_one_at_least() -> None:
    form = opened()
    assert of(form)["policies"].options == POLICIES.names() and of(form)["folders"].options == ["recorded"]
    put(form, "policies", ["paged", "h2o", "buddy", "paged-int8"])
    assert address(form)["policies"] == "paged,h2o,buddy,paged-int8"
    put(form, "folders", ["recorded"])
    assert "At most 4" in form.error[0].value
    of(form)["policies"].set_value([])
    put(form, "folders", [])
    assert "at least one policy" in form.error[0].value
    put(form, "folders", ["recorded"])
    assert not form.error and address(form)["runs"] == "recorded" and address(form)["policies"] == ""


def test_a_preset_fills_the_form_and_own_settings_are_named_so() -> None:
    form = opened()
    assert of(form)["preset"].value not in PRESETS
    for name, preset in PRESETS.items():
        of(form)["preset"].set_value(name).run()
        assert not form.exception and address(form) == preset.selection.query()
        assert of(form)["preset"].value == name and of(form)["preset"].options == list(PRESETS)
    put(form, "seed", "3")
    assert of(form)["preset"].value not in PRESETS


def test_run_alone_changes_nothing() -> None:
    form = opened()
    before = address(form)
    of(form)["run"].click().run()
    assert not form.exception and not form.error and address(form) == before
