"""The profile's schema: what it refuses, and that it survives a round trip."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from cost_cases import curved

from kvsim.device import SCHEMA, DeviceProfile, Facts, catalogue, load_device, parse_profile
from kvsim.device import profile as module
from kvsim.errors import InputError

IDS = ["a100-40-sxm", "a100-80-sxm", "a800-80", "h100-pcie", "h100-sxm", "h800", "h20", "h200-sxm", "b200", "gb200",
       "l4", "l40s", "a10", "a40", "v100", "rtx-3090", "rtx-4090", "rtx-pro-6000", "mi300x", "cpu"]


def edited(change: dict[str, object]) -> str:
    return json.dumps({**json.loads(curved().to_json()), **change})


def test_the_catalogue_is_complete() -> None:
    assert set(IDS) <= set(catalogue())


@pytest.mark.parametrize("name", IDS)
def test_facts_are_plausible(name: str) -> None:
    facts = load_device(name).facts
    gib = facts.memory_bytes / 2**30
    assert 15 <= gib <= 300
    assert name == "cpu" or gib % 8, "memory as it is sold, not as CUDA reports it"
    assert 10e9 <= facts.bandwidth <= 10e12
    assert facts.flops["bf16"] / facts.bandwidth > 5, "every device computes faster than it reads"
    assert facts.sources and facts.memory_source


def test_round_trip() -> None:
    profile = curved()
    assert parse_profile(profile.to_json(), "memory") == profile
    assert parse_profile(load_device("h100-sxm").to_json(), "memory").facts == load_device("h100-sxm").facts


def test_ratios_are_percent_in_a_file_where_that_loses_no_digit() -> None:
    profile = curved()
    lines = json.loads(profile.to_json())["curves"]
    assert lines["linear"][0]["percent"][0] == [round(100 * ratio) for ratio in profile.curves.linear[0].ratio[0]]
    table = profile.curves.linear[0]
    odd = table.model_copy(update={"ratio": ((1 / 3, *table.ratio[0][1:]), *table.ratio[1:])})
    profile = profile.model_copy(update={"curves": profile.curves.model_copy(update={"linear": (odd,)})})
    assert json.loads(profile.to_json())["curves"]["linear"][0]["ratio"][0][0] == 1 / 3
    assert parse_profile(profile.to_json(), "memory") == profile


def test_profiles_of_schema_1_are_read() -> None:
    data = json.loads(curved().to_json())
    table = data["curves"]["linear"][0]
    table["ratio"] = [[percent / 100 for percent in row] for row in table.pop("percent")]
    assert parse_profile(json.dumps({**data, "schema": 1}), "old.json") == curved()


def test_one_line_a_curve() -> None:
    assert sum(line.startswith("   {") for line in curved().to_json().splitlines()) == 5


def test_a_newer_schema_is_refused() -> None:
    with pytest.raises(InputError, match=f"schema {SCHEMA + 1}.*upgrade"):
        parse_profile(edited({"schema": SCHEMA + 1}), "x.json")
    with pytest.raises(InputError, match="upgrade"):
        parse_profile(edited({"schema": SCHEMA + 1, "brand_new": 1}), "x.json")
    without = {key: value for key, value in json.loads(curved().to_json()).items() if key != "schema"}
    with pytest.raises(InputError, match="no schema version"):
        parse_profile(json.dumps(without), "x.json")


@pytest.mark.parametrize(("change", "says"), [
    ({"schema": None}, "schema"),
    ({"schema": True}, "schema"),
    ({"schema": 0}, "schema"),
    ({"colour": "green"}, "colour"),
    ({"provenance": {}}, "curves refer to sources that provenance does not hold: test"),
    ({"id": "No Spaces"}, "id"),
    ({"facts": {}}, "facts"),
])
def test_a_bad_profile_says_what_is_wrong(change: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)) as error:
        parse_profile(edited(change), "x.json")
    assert "x.json" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-1", "0"])
def test_numbers_are_finite_and_positive(value: str) -> None:
    text = re.sub(r'"bandwidth": [0-9.]+', f'"bandwidth": {value}', curved().to_json())
    with pytest.raises(InputError, match="bandwidth"):
        parse_profile(text, "x.json")


@pytest.mark.parametrize(("old", "new", "says"), [
    ('"outer":[1,4', '"outer":[4,4', "outer must strictly increase"),
    ('"m":[1,64,', '"m":[1,', "a column per value of m"),
    ('"kv_dtype":"bf16"', '"kv_dtype":"bf17"', "bf17"),
    ('"kv_heads":8', '"kv_heads":0', "kv_heads"),
    ('"percent":[', '"ratio":[1],"percent":[', "percent or ratio, not both"),
    ('"percent":[[', '"percent":[["x",', "valid number"),
    ('"percent":[[', '"percent":[[0,', "greater than 0"),
])
def test_tables_fit_their_axes(old: str, new: str, says: str) -> None:
    text = curved().to_json()
    text = text.replace(',"kv_heads":8', ',"kv_dtype":"bf16","kv_heads":8')
    assert old in text
    with pytest.raises(InputError, match=re.escape(says)):
        parse_profile(text.replace(old, new), "x.json")


def test_not_json() -> None:
    for text in ("", "[]", "{", '"x"'):
        with pytest.raises(InputError, match="not a JSON object"):
            parse_profile(text, "x.json")


def test_names_and_paths(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean h100-sxm"):
        load_device("h100-smx")
    path = tmp_path / "mine.json"
    with pytest.raises(InputError, match="can't be read"):
        load_device(path)
    path.write_text(curved().to_json())
    assert load_device(path) == curved()


def test_a_sibling_lends_its_ratios_as_datasheet(monkeypatch: pytest.MonkeyPatch) -> None:
    lender, text = curved(), load_device("a10").model_copy(update={"curves_from": "h100-sxm"}).to_json()
    monkeypatch.setattr(module, "_from_catalogue", lambda name: lender)
    borrowed = parse_profile(text, "x.json")
    monkeypatch.undo()
    assert borrowed.curves == lender.curves
    assert borrowed.tier == "datasheet"
    assert {p.tier for p in borrowed.provenance.values()} == {"datasheet"}
    assert borrowed.facts == load_device("a10").facts
    own, lent = lender.provenance["test"], borrowed.provenance["test"]
    assert own.points and lent.points and lent.points.p95 == pytest.approx(math.hypot(own.points.p95, 0.20))
    assert lent.fallback.nearest and lent.fallback.nearest.p95 > 0.25


def test_a_format_without_units_runs_as_bf16() -> None:
    facts = load_device("a100-80-sxm").facts
    assert isinstance(facts, Facts)
    assert facts.peak_flops("fp8") == facts.peak_flops("bf16") == 312e12


def test_profiles_are_frozen() -> None:
    profile = load_device("h100-sxm")
    assert isinstance(profile, DeviceProfile)
    with pytest.raises(ValueError, match="frozen"):
        profile.name = "other"  # type: ignore[misc]
