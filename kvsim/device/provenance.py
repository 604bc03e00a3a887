"""Where a number comes from and how far off it is: every curve of a profile refers to one `Provenance`."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Tier = Literal["measured", "imported", "datasheet"]
"""measured: on this device, by us · imported: somebody else's published measurements · datasheet: peak numbers only."""

TIERS: tuple[Tier, ...] = ("measured", "imported", "datasheet")
"""Best first."""

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class Frozen(BaseModel):
    """Base of the profile's types: immutable, no unknown keys, no NaN, no infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class HeldOutError(Frozen):
    """Relative error of predictions over rows that no fit has seen."""

    median: NotNegative
    """median of |predicted ÷ true − 1|"""
    p95: NotNegative
    """95th percentile of the same"""
    bias: Annotated[float, Field(gt=-1)] = 0.0
    """median of predicted ÷ true − 1, with its sign"""
    rows: Annotated[int, Field(ge=0)] = 0


class FallbackErrors(Frozen):
    """Errors of the three answers to a key that the profile does not hold, each measured on whole held-out keys."""

    interpolated: HeldOutError | None = None
    """the ratio interpolated between neighbouring keys"""
    nearest: HeldOutError | None = None
    """the nearest key's ratio"""
    form: HeldOutError | None = None
    """the physical form alone"""
    beyond: HeldOutError | None = None
    """a point outside a known key's grid: the form times the last ratio"""


class Provenance(Frozen):
    """How a family of curves was made."""

    tier: Tier
    source: Annotated[str, Field(min_length=1)]
    """the data, by name, version and file"""
    licence: str | None = None
    """SPDX id of imported data"""
    made_by: str | None = None
    """the command that wrote these curves"""
    date: date
    kernels: tuple[str, ...] = ()
    """kernel names as the source gives them"""
    versions: dict[str, str] = Field(default_factory=dict)
    """library → version, e.g. {"vllm": "0.24.0", "cuda": "13.0"}"""
    clocks: dict[str, float] = Field(default_factory=dict)
    """MHz by domain ("sm", "memory"), where the source says so"""
    rows: Annotated[int, Field(ge=0)] = 0
    """measured rows the fit used"""
    dropped: dict[str, int] = Field(default_factory=dict)
    """rows left out, by reason"""
    points: HeldOutError | None = None
    """held out: points inside known keys"""
    keys: HeldOutError | None = None
    """held out: whole keys"""
    fallback: FallbackErrors = FallbackErrors()
    notes: str = ""
