"""What a device is and how fast it was measured to be: the profile JSON, its schema and its catalogue."""

from kvsim.device.curves import (
    CollectiveCurve,
    Curves,
    DecodeCurve,
    LinearTable,
    MemoryCurve,
    MixedCurve,
    MoeCurve,
    PrefillCurve,
    Ragged,
    SkewTable,
)
from kvsim.device.facts import Facts
from kvsim.device.keys import AttentionKey, MoeKey
from kvsim.device.profile import SCHEMA, DeviceProfile, catalogue, load_device, parse_profile
from kvsim.device.provenance import FallbackErrors, HeldOutError, Provenance, Tier

__all__ = [
    "SCHEMA",
    "AttentionKey",
    "CollectiveCurve",
    "Curves",
    "DecodeCurve",
    "DeviceProfile",
    "Facts",
    "FallbackErrors",
    "HeldOutError",
    "LinearTable",
    "MemoryCurve",
    "MixedCurve",
    "MoeCurve",
    "MoeKey",
    "PrefillCurve",
    "Provenance",
    "Ragged",
    "SkewTable",
    "Tier",
    "catalogue",
    "load_device",
    "parse_profile",
]
