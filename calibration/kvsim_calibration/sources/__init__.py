"""Published measurements, one file a data set: its columns, units, filters and licence."""

from __future__ import annotations

from pathlib import Path

from kvsim.device import DeviceProfile
from kvsim.errors import InputError
from kvsim_calibration.rows import Rows
from kvsim_calibration.sources import aiconfigurator, llmservingsim, vidur

TAGS = ("aic", "lss", "vidur")
"""how a provenance's name begins"""


def read(tag: str, where: str, profile: DeviceProfile) -> list[Rows]:
    """The rows of one source for a device, as the import of that name reads them. Raises InputError."""
    if tag == "aic":
        return aiconfigurator.read(where, profile.id, profile.facts)
    if tag == "lss":
        return llmservingsim.read(where, profile.id)
    return vidur.read(where, profile.id)


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
