"""Where rows come from: published measurements, one file a data set (its columns, units, filters and licence), and the
raw rows of our own calibrations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.device import DeviceProfile
from kvsim.errors import InputError
from kvsim_calibration.rows import Rows
from kvsim_calibration.sources import aiconfigurator, llmservingsim, vidur

if TYPE_CHECKING:
    from kvsim_calibration.backends.store import Store

PUBLISHED = ("aic", "lss", "vidur")
MEASURED = ("cuda", "torch")
TAGS = (*PUBLISHED, *MEASURED)
"""how a provenance's name begins"""


def read(tag: str, where: str, profile: DeviceProfile) -> list[Rows]:
    """The rows of one source for a device, as the import of that name reads them. Raises InputError."""
    if tag == "aic":
        all_reduce = profile.provenance.get("aic-collective-bf16")  # maybe of an older version than the others
        return aiconfigurator.read(where, profile.id, profile.facts, all_reduce and all_reduce.versions["vllm"])
    if tag == "lss":
        return llmservingsim.read(where, profile.id)
    if tag == "vidur":
        return vidur.read(where, profile.id)
    return _measured(tag, where)


def _measured(tag: str, where: str) -> list[Rows]:
    from kvsim_calibration.backends.measured import rows_of

    return rows_of(_store(tag, where))


def _store(tag: str, where: str) -> Store:
    """Raw rows of the backend `tag`: a file, or the only one of a folder."""
    from kvsim_calibration.backends.store import Store

    path = Path(where)
    files = sorted(path.glob("*.rows.jsonl")) if path.is_dir() else [path]
    stores = [store for store in map(Store, files) if store.machine and store.machine["backend"] == tag]
    if len(stores) != 1:
        raise InputError(f"{where} holds {len(stores)} files of raw rows of the backend {tag}: name the one that the "
                         "profile was fitted to")
    return stores[0]


def read_again(profile: DeviceProfile, where: str) -> dict[str, list[Rows]]:
    """tag → rows of every source of the profile that `where` holds. Raises InputError without any."""
    if where != "installed" and not Path(where).exists():
        raise InputError(f"{where}: no such file or folder")
    found: dict[str, list[Rows]] = {}
    tried = [tag for tag in TAGS if any(name.startswith(f"{tag}-") for name in profile.provenance)]
    for tag in tried:
        try:
            found[tag] = read(tag, where, profile)
        except InputError as error:
            last = error
    if tried and not found:
        raise last
    return found
