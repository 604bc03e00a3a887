"""What this device is: its name, memory and caches as the system reports them, its ceilings as measured here."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.device import Facts, load_device
from kvsim.errors import InputError

if TYPE_CHECKING:
    import torch

Row = dict[str, Any]
LAST_CACHE = 32 << 20
"""bytes of the last cache level where the system does not say"""
CATALOGUE = (
    ("H200", "h200-sxm"), ("H100 PCIe", "h100-pcie"), ("H100", "h100-sxm"), ("H20", "h20"), ("H800", "h800"),
    ("GB200", "gb200"), ("B200", "b200"), ("A100-SXM4-80GB", "a100-80-sxm"), ("A100-SXM4-40GB", "a100-40-sxm"),
    ("L40S", "l40s"), ("RTX PRO 6000", "rtx-pro-6000"), ("RTX 4090", "rtx-4090"), ("RTX 3090", "rtx-3090"),
    ("A10", "a10"), ("A40", "a40"), ("L4", "l4"), ("V100", "v100"), ("MI300X", "mi300x"),
)
"""part of the driver's name → id of the profile whose data sheet it is; more telling names first"""


def describe(device: torch.device, backend: str, threads: int, dtypes: tuple[str, ...]) -> Row:
    """What raw rows depend on: the first line of their file."""
    import torch

    common: Row = {"backend": backend, "device": str(device), "torch": torch.__version__, "dtypes": list(dtypes)}
    if device.type == "cpu":
        return {**common, "name": _cpu_name(), "arch": platform.machine(), "cores": threads,
                "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
                "last_cache_bytes": _last_cache()}
    if device.type != "cuda":
        return {**common, "name": f"{device.type} device", "arch": device.type, "cores": 1,
                "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
                "last_cache_bytes": LAST_CACHE}
    about = torch.cuda.get_device_properties(device)
    arch = getattr(about, "gcnArchName", "").split(":")[0] if torch.version.hip else f"sm_{about.major}{about.minor}"
    return {**common, "name": about.name, "arch": arch, "cores": about.multi_processor_count,
            "memory_bytes": about.total_memory, "last_cache_bytes": getattr(about, "L2_cache_size", 0) or LAST_CACHE}


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _last_cache() -> int:
    """Bytes of the highest cache level of core 0."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    units = {"K": 1 << 10, "M": 1 << 20}
    found = [int(size[:-1]) * units[size[-1]] for size in sizes if size[:-1].isdigit() and size[-1] in units]
    return max(found, default=LAST_CACHE)


def identifier(machine: Row) -> str:
    """A profile's id: `cpu-amd-epyc`, or the catalogue's id of the card."""
    if known := _catalogue_id(machine["name"]):
        return known
    words = "-".join(re.findall(r"[a-z0-9]+", machine["name"].lower()))
    return f"{machine['device'].split(':')[0]}-{words}"[:60].rstrip("-")


def _catalogue_id(name: str) -> str | None:
    if "NVL" in name.split():  # other clocks, memory and power than the SXM card of that name
        return None
    return next((found for part, found in CATALOGUE if re.search(rf"\b{re.escape(part)}\b", name)), None)


def facts(machine: Row, ceilings: dict[str, float]) -> Facts:
    """The data sheet's facts where the catalogue knows the card, else the ceilings measured here: `read` and `copy` in
    bytes/s, `gemm <dtype>` in FLOP/s. Raises InputError where those are missing."""
    if known := _catalogue_id(machine["name"]):
        sheet = load_device(known).facts
        return sheet.model_copy(update={"memory_bytes": machine["memory_bytes"],
                                        "memory_source": "as the driver reports it on the calibrated machine"})
    flops = {name.split()[1]: value for name, value in ceilings.items() if name.startswith("gemm ")}
    bandwidth = max((ceilings[name] for name in ("read", "copy") if name in ceilings), default=0.0)
    if not flops or not bandwidth:
        raise InputError("the ceilings of this device were not measured yet: run again with --resume and more --budget")
    flops.setdefault("bf16", max(flops.values()))
    return Facts(
        vendor=machine["name"].split()[0], arch=machine["arch"], memory_bytes=machine["memory_bytes"],
        memory_source="as the system reports it", bandwidth=bandwidth, flops=flops,
        l2_bytes=machine["last_cache_bytes"], sms=machine["cores"], link_bandwidth=bandwidth, link_latency_ns=10_000,
        host_bandwidth=bandwidth, power_watts=65,
        sources=("bandwidth and FLOP/s: the ceilings measured here (largest read or copy, torch's matrix product)",
                 "link, host link and power: placeholders"))
