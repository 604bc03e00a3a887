"""All-reduces by NCCL: tables of devices linked by NVLink are of vLLM's own kernel, which starts five times as fast."""

from __future__ import annotations

from datetime import date

from kvsim.device import CollectiveCurve, DeviceProfile, HeldOutError, Provenance
from kvsim.device.forms import CollectiveForm

FORM = CollectiveForm(fixed_ns=25_000, efficiency=0.75)
"""fitted to the fastest of each size's runs in Vidur's table of 4 and 8 H100 (microsoft/vidur, MIT)"""
_ERROR = HeldOutError(median=0.07, p95=0.35)
_NAME = "nccl"


def over_nccl(device: DeviceProfile) -> DeviceProfile:
    """The device with NCCL's all-reduce. Cards without NVLink have it in their tables already."""
    if device.facts.link_bandwidth <= device.facts.host_bandwidth:
        return device
    curve = CollectiveCurve(gpus=8, form=FORM, bytes=(1.0,), ratio=(1.0,), source=_NAME)
    origin = Provenance(tier="imported", source="microsoft/vidur data/profiling, h100_dgx all_reduce", licence="MIT",
                        date=date(2026, 11, 30), points=_ERROR)  # fmt: skip
    return device.model_copy(update={"provenance": {**device.provenance, _NAME: origin},
                                     "curves": device.curves.model_copy(update={"collective": (curve,)})})  # fmt: skip
