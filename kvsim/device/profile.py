"""`DeviceProfile`: the JSON file that is the only thing between calibration and simulator."""

from __future__ import annotations

import json
from datetime import date
from functools import lru_cache
from importlib.resources import files
from math import hypot
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from kvsim.device.curves import Curves
from kvsim.device.facts import Facts
from kvsim.device.provenance import FallbackErrors, Frozen, HeldOutError, Provenance
from kvsim.errors import InputError
from kvsim.registry import unknown

SCHEMA = 2
"""Version this program reads and writes. It reads older ones; a newer one is refused. 2: ratios in percent."""

SIBLING_ERROR = HeldOutError(median=0.05, p95=0.20)
"""H100's ratios over H200's facts and back: decode 2 % and 8 %, linear bf16 5 % and 18 %, fp8 6 % and 20 %. Across
architectures a loan is worse than the bare form (A100 to H100: 26 % and 92 %), so only siblings lend."""


class DeviceProfile(Frozen):
    """A device's facts and its measured curves, each with its origin and its held-out error."""

    schema_version: Annotated[int, Field(alias="schema", strict=True, ge=1)] = SCHEMA
    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    name: str
    facts: Facts
    date: date
    curves: Curves = Curves()
    provenance: dict[str, Provenance] = Field(default_factory=dict)
    """source name (a curve's `source`) → where it comes from"""
    curves_from: str | None = None
    """id of a sibling whose curves stand in: its ratios over this device's facts, tier `datasheet`"""

    @model_validator(mode="after")
    def _sources_are_known(self) -> DeviceProfile:
        missing = sorted(self.curves.sources() - set(self.provenance))
        if missing:
            raise ValueError(f"curves refer to sources that provenance does not hold: {', '.join(missing)}")
        return self

    @property
    def tier(self) -> str:
        """best tier among the curves; `datasheet` where there are none"""
        tiers = {self.provenance[source].tier for source in self.curves.sources()} if not self.curves_from else set()
        return next((tier for tier in ("measured", "imported") if tier in tiers), "datasheet")

    def to_json(self) -> str:
        """The file's text: compact, a line a curve, so that a diff of two profiles can be read."""
        data = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        data = {"schema": self.schema_version, **{k: v for k, v in data.items() if k != "schema"}}
        lines = []
        for key, value in data.items():
            if key == "curves":
                inner = [f'  {json.dumps(family)}: [\n' + ",\n".join(f"   {_compact(c)}" for c in curves) + "\n  ]"
                         for family, curves in value.items()]
                lines.append(' "curves": {\n' + ",\n".join(inner) + "\n }")
            else:
                lines.append(f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}")
        return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(_whole(value), ensure_ascii=False, separators=(",", ":"))


def _whole(value: Any) -> Any:
    """The same with whole floats as integers: `512.0` takes as much room as two digits of a ratio."""
    if isinstance(value, dict):
        return {name: _whole(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_whole(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def catalogue() -> list[str]:
    """ids of the profiles that come with kvsim"""
    folder = files("kvsim") / "data" / "profiles"
    return sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json"))


def load_device(name_or_path: str | Path) -> DeviceProfile:
    """A catalogue id (`h100-sxm`) or a path to a profile JSON → the profile, a sibling's curves filled in.

    Raises InputError for an unknown name (with the nearest ones), a file that can't be read, a newer schema version,
    unknown keys, NaN, or tables that don't fit their axes."""
    text = str(name_or_path)
    if text in catalogue():
        return _from_catalogue(text)
    path = Path(name_or_path)
    if path.suffix == ".json" or path.is_file():
        try:
            return parse_profile(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"device profile {path} can't be read: {error}") from None
    raise unknown("device", text, catalogue())


def parse_profile(text: str, where: str) -> DeviceProfile:
    """The text of a profile file → the profile; `where` names the file in messages. Raises InputError."""
    try:
        profile = DeviceProfile.model_validate_json(text)
    except ValidationError as error:
        raise _explain(error, text, where) from None
    if "schema_version" not in profile.model_fields_set:
        raise InputError(f'device profile {where} has no schema version: it needs "schema": {SCHEMA}')
    if profile.schema_version > SCHEMA:
        raise _newer(profile.schema_version, where)
    return _with_sibling(profile.model_copy(update={"schema_version": SCHEMA}))


def _newer(version: int, where: str) -> InputError:
    return InputError(f"device profile {where} has schema {version}, this kvsim reads up to {SCHEMA}: upgrade kvsim")


def _explain(error: ValidationError, text: str, where: str) -> InputError:
    """One sentence for a file that does not validate; a newer schema explains whatever else is strange."""
    try:
        version = json.loads(text).get("schema")
    except (ValueError, AttributeError):
        return InputError(f"device profile {where} is not a JSON object")
    if isinstance(version, int) and version > SCHEMA:
        return _newer(version, where)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"]) or "the file"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return InputError(f"device profile {where}: {place}: {first['msg']}{more}")


@lru_cache(maxsize=8)
def _from_catalogue(name: str) -> DeviceProfile:
    path = files("kvsim") / "data" / "profiles" / f"{name}.json"
    return parse_profile(path.read_text(encoding="utf-8"), f"{name}.json")


def _with_sibling(profile: DeviceProfile) -> DeviceProfile:
    """`curves_from` resolved: the sibling's ratios and forms, marked as datasheet."""
    if profile.curves_from is None or profile.curves != Curves():
        return profile
    if profile.curves_from == profile.id or profile.curves_from not in catalogue():
        raise unknown("device in curves_from", profile.curves_from, [i for i in catalogue() if i != profile.id])
    sibling = _from_catalogue(profile.curves_from)
    lent = {name: _lent(provenance, sibling.id) for name, provenance in sibling.provenance.items()}
    return profile.model_copy(update={"curves": sibling.curves, "provenance": lent})


def _lent(provenance: Provenance, sibling: str) -> Provenance:
    """The provenance of a sibling's curves: tier datasheet, every error widened."""
    def widened(error: HeldOutError | None) -> HeldOutError | None:
        return error and error.model_copy(update={"median": hypot(error.median, SIBLING_ERROR.median),
                                                  "p95": hypot(error.p95, SIBLING_ERROR.p95)})

    fallback = {name: widened(error) for name, error in provenance.fallback}
    return provenance.model_copy(update={
        "tier": "datasheet", "points": widened(provenance.points) or SIBLING_ERROR, "keys": widened(provenance.keys),
        "fallback": FallbackErrors(**fallback),
        "notes": f"ratios of {sibling} over this device's facts. {provenance.notes}".strip()})
