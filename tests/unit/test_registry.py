"""Names that are not known: what is offered instead."""

from __future__ import annotations

import pytest

from kvsim.cache.policies import POLICIES
from kvsim.cluster import ROUTERS
from kvsim.device import catalogue
from kvsim.engine_profile import engine_names
from kvsim.model import model_names
from kvsim.registry import SHOWN, either, nearest, unknown

KNOWN = {"model": model_names(), "device": catalogue(), "policy": POLICIES.names(), "router": ROUTERS.names(),
         "engine": engine_names()}  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "first"), [
    ("model", "llama-99", ["llama-3.3-70b", "llama-3.1-70b", "llama-3-70b"]),
    ("model", "llama-3.1-9b", ["llama-3.1-8b", "llama-3-8b"]),
    ("model", "lama-3.1-8b", ["llama-3.1-8b"]),
    ("model", "llama3", ["llama-3-8b", "llama-3-70b"]),
    ("model", "Qwen/Qwen3-7B", ["qwen3-8b"]),
    ("model", "deepseek-v4", ["deepseek-v3.2", "deepseek-v3"]),
    ("model", "mistral-8b", ["mistral-7b"]),
    ("model", "gemma-3-13b", ["gemma-3-12b"]),
    ("device", "a100", ["a100-40-sxm", "a100-80-sxm"]),
    ("device", "h101", ["h100-pcie", "h100-sxm"]),
    ("device", "b300", ["b200"]),
    ("policy", "pagd", ["paged"]),
    ("policy", "int8", ["paged-int8"]),
    ("router", "robin", ["round-robin"]),
    ("engine", "vllm", ["vllm-1", "vllm-0"]),
])
def test_the_nearest_is_what_a_person_means(kind: str, name: str, first: list[str]) -> None:
    assert nearest(name, KNOWN[kind])[: len(first)] == first


@pytest.mark.parametrize("kind", KNOWN)
def test_a_slip_in_a_name_finds_the_name(kind: str) -> None:
    """A letter left out, doubled or swapped with the next one, anywhere but at the beginning."""
    for name in KNOWN[kind]:
        for at in (place for place in range(1, len(name) - 1) if name[place : place + 2].isalpha()):
            swapped = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
            for slip in (name[:at] + name[at + 1 :], name[:at] + name[at] + name[at:], swapped):
                assert slip in KNOWN[kind] or name in nearest(slip, KNOWN[kind]), (slip, nearest(slip, KNOWN[kind]))


def test_few_names_are_all_said_and_of_many_the_nearest() -> None:
    assert str(unknown("router", "x", ROUTERS.names())).endswith(", ".join(sorted(ROUTERS.names())))
    said = str(unknown("model", "nonsense", model_names()))
    assert "the nearest of " in said and said.endswith("see `kvsim list models`")
    assert all(len(nearest(name, model_names(), 0.0)) == SHOWN for name in ("", "x", "99", "llama"))


def test_either() -> None:
    assert [either(list("abc")[:count]) for count in (1, 2, 3)] == ["a", "a or b", "a, b or c"]
