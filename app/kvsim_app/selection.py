"""What is looked at: a scenario under some policies, and runs from the results folder. It is the page's URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvsim.cache.policies import POLICIES
from kvsim.errors import InputError
from kvsim.scenario import Scenario, make

MOST = 4
"""runs beside each other that a reader can tell apart"""
DEFAULTS = {"trace": "sample", "duration": "5m", "model": "llama-3.1-8b", "device": "h100-sxm"}
DEFAULT_POLICIES = ("contiguous", "paged", "paged-prefix")


@dataclass(frozen=True)
class Selection:
    """`base` is the scenario without its policy; `folders` are names of Result folders."""

    base: Scenario
    policies: tuple[str, ...] = DEFAULT_POLICIES
    folders: tuple[str, ...] = ()

    def scenarios(self, **changes: object) -> dict[str, Scenario]:
        """The scenario under each policy, by the policy's name."""
        return {policy: self.base.replace(policy=policy, **changes) for policy in self.policies}

    def query(self) -> dict[str, str]:
        """The part of the URL that `from_query` reads back."""
        plain = self.base.model_dump(mode="json", exclude_defaults=True)
        said = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in plain.items()}
        said["policies"] = ",".join(self.policies)
        if self.folders:
            said["runs"] = ",".join(self.folders)
        return said

    @classmethod
    def default(cls) -> Selection:
        return cls(make(DEFAULTS))

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> Selection:
        """The selection of a URL. Raises InputError that says which part of it is wrong."""
        said = dict(query)
        policies = _names(said.pop("policies", said.pop("policy", ",".join(DEFAULT_POLICIES))))
        folders = _names(said.pop("runs", ""))
        for policy in policies:
            POLICIES.get(policy)
        if len(policies) + len(folders) > MOST:
            raise InputError(f"{len(policies) + len(folders)} runs are asked for: at most {MOST} fit beside each other")
        if not policies and not folders:
            raise InputError("no policy is named: choose at least one")
        start = {key: value for key, value in DEFAULTS.items() if key != "duration" or "trace" not in said}
        return cls(make(start | said, {name: f"{name} in the address" for name in said}), policies, folders)


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
