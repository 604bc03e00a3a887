"""Scenario: precedence of its sources, validation as one sentence, identity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import InputError
from kvsim.scenario import Scenario, fields

BASE: dict[str, Any] = {"trace": "sample", "model": "llama-3.1-8b", "device": "h100-sxm"}


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('trace = "a.csv"\nmodel = "file"\ndevice = "h200-sxm"\nrate = 2\nstart = "10m"\n')
    scenario = Scenario.build({"trace": "flag.csv", "policy": None}, file, ["model=set", "rate=4.5"])
    assert (scenario.trace, scenario.model, scenario.device) == ("flag.csv", "set", "h200-sxm")
    assert (scenario.rate, scenario.start_ns, scenario.policy) == (4.5, 600 * 10**9, None)


def test_a_saved_scenario_builds_again() -> None:
    scenario = Scenario.build({**BASE, "duration": "1h", "rate_scale": 0.5, "interval": False})
    assert Scenario.build(scenario.model_dump()) == scenario


def test_key_is_the_content() -> None:
    scenario = Scenario.build(BASE)
    assert scenario.replace(tp=1).key == scenario.key
    assert len({scenario.key, scenario.replace(tp=2).key, scenario.replace(policy="paged").key}) == 3


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"rate": float("nan")}, "--rate is nan"),
        ({"rate": 0}, "--rate is 0; it must be greater than 0"),
        ({"rate": -1}, "--rate is -1; it must be greater than 0"),
        ({"rate": float("inf")}, "--rate is inf; it must be a finite number"),
        ({"scale_lengths": 0}, "--scale-lengths is 0; it must be greater than 0"),
        ({"limit": 0}, "--limit is 0"),
        ({"tp": 1.5}, "--tp is 1.5; it must be a valid integer"),
        ({"gpu_memory_utilization": 1.1}, "--gpu-memory-utilization is 1.1"),
        ({"start": "soon"}, "--start: duration 'soon' is not understood"),
        ({"attention": "fast"}, "--attention is 'fast'; it must be 'flash' or 'naive'"),
        ({"model": None}, "--model is missing"),
    ],
)
def test_bad_values_name_the_flag(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match="^" + message.replace("(", r"\(")) as caught:
        Scenario.build({**BASE, **flags})
    assert "\n" not in str(caught.value)


def test_bad_keys_and_files(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text("blok_size = 16\n")
    with pytest.raises(InputError, match=r"s\.toml: blok_size: unknown .* did you mean block_size\?"):
        Scenario.build(BASE, file)
    with pytest.raises(InputError, match="--set rat: unknown"):
        Scenario.build(BASE, sets=["rat=1"])
    with pytest.raises(InputError, match="write key=value"):
        Scenario.build(BASE, sets=["rate"])
    file.write_text("rate = = 1")
    with pytest.raises(InputError, match=r"s\.toml is not TOML"):
        Scenario.build(BASE, file)
    with pytest.raises(InputError, match="no such file"):
        Scenario.build(BASE, tmp_path / "none.toml")


def test_every_field_says_what_it_is() -> None:
    for name, field in fields().items():
        assert field.description, name
