"""Our measurements beside a published profile of the same card: how our kernels' times compare with its curves."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvsim.device import DeviceProfile, catalogue, load_device
from kvsim_calibration.evaluate import predict
from kvsim_calibration.rows import Rows

FAMILIES = {"decode": "kv_dtype", "prefill": "kv_dtype", "linear": "dtype"}
"""curve → column of its dtype"""


def published(profile: DeviceProfile) -> DeviceProfile | None:
    """The catalogue's profile of the card that `profile` was measured on, if that has curves of somebody else's."""
    if profile.id not in catalogue() or profile.tier != "measured":
        return None
    known = load_device(profile.id)
    return known if known.tier == "imported" else None


def compared(rows: list[Rows], known: DeviceProfile) -> list[dict[str, Any]]:
    """A line a curve and dtype: points, and our time ÷ the published curve's (median, 10th and 90th percentile)."""
    found = []
    for one in rows:
        if one.family not in FAMILIES:
            continue
        for (dtype,), frame in one.frame.group_by(FAMILIES[one.family], maintain_order=True):
            ratio = frame["ns"].to_numpy() / predict(known, one.family, frame)
            p10, median, p90 = (float(x) for x in np.percentile(ratio, [10, 50, 90]))
            found.append({"curve": one.family, "dtype": str(dtype), "points": frame.height, "median": median,
                          "p10": p10, "p90": p90})
    return found
