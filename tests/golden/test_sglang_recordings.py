"""Radix tree and scheduler against recordings of SGLang's own: every call to the cache, every step."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.cache.radix import WIDTH, Key, Node, RadixTree, key_of, units_of
from kvsim.validate.sglang_schedule import job, leaf, steps, with_evicted

Json = dict[str, Any]
OWN = sorted((Path(__file__).parent / "sglang").glob("*.json.gz"))


def load(file: Path) -> Json:
    recording: Json = json.loads(gzip.decompress(file.read_bytes()))
    return recording


def name_of(tokens: Key) -> list[Any]:
    """A node as recordings name it: length and hash of the path to its end."""
    text = ",".join(map(str, units_of(tokens)))
    return [len(tokens) // WIDTH, hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""]


def find(tree: RadixTree, name: list[Any], paths: dict[str, Key]) -> Node:
    """The node of that name, without a walk that would refresh it."""
    node, tokens = tree.root, paths[name[1]]
    while node.end < name[0]:
        node = node.children[tokens[node.end * WIDTH : (node.end + tree.page) * WIDTH]]
    assert node.end == name[0]
    return node


def replay_calls(recording: Json) -> int:
    """All calls in order to a tree alone; results and states must be those recorded. Returns how many there were."""
    limits = recording["limits"]
    tree = RadixTree(limits["page_size"], limits["eviction"])
    tokens = {request["id"]: job(request).key for request in recording["requests"]}
    paths = {"": tree.root.key}
    count = 0
    for step in recording["steps"]:
        for call in step["calls"] + step["calls_after"]:
            key = tokens[call["request"]][: call["length"] * WIDTH] if "request" in call else tree.root.key
            match call["call"]:
                case "match":
                    node = tree.match(key)
                    assert node.end == call["matched"]
                    paths[name_of(key[: node.end * WIDTH])[1]] = key[: node.end * WIDTH]
                case "touch":
                    tree.match(key)
                case "insert":
                    assert tree.insert(key, call["inserted_before"], call["priority"]) == call["already"]
                case "lock":
                    tree.lock(find(tree, call["node"], paths))
                case "unlock":
                    tree.unlock(find(tree, call["node"], paths))
                case "evict":
                    gone = tree.evict(call["want"])
                    assert sum(node.size for node in gone) == call["evicted"]
                    assert [leaf(node) for node in gone] == call["leaves"]
            assert [tree.size, tree.evictable, tree.protected] == call["state"][:3]
            count += 1
        tree.check()
    return count


def compare_steps(recording: Json) -> None:
    """Our steps must be those recorded, in all they say (requests of a step in order, too)."""
    mine = steps(recording)
    for i, (ours, theirs) in enumerate(zip(mine, map(with_evicted, recording["steps"]), strict=False)):
        assert ours == {key: theirs[key] for key in ours}, f"step {i}"
        assert list(ours["scheduled"]) == list(theirs["scheduled"]), f"step {i}"
    assert len(mine) == len(recording["steps"])


@pytest.mark.parametrize("file", OWN, ids=lambda file: file.name.split(".")[0])
def test_own_recording(file: Path) -> None:
    recording = load(file)
    assert replay_calls(recording) > 300
    compare_steps(recording)


@pytest.mark.shared
def test_every_recorded_call(shared: Path) -> None:
    files = sorted((shared / "oracle").glob("sglang_*.json.gz"))
    assert sum(replay_calls(load(file)) for file in files) > 10_000


@pytest.mark.shared
def test_every_recorded_step(shared: Path) -> None:
    files = sorted((shared / "oracle").glob("sglang_*.json.gz"))
    assert len(files) >= 8
    for file in files:
        compare_steps(load(file))


@pytest.mark.parametrize("file", [f for f in OWN if "longest_prefix" not in f.name], ids=lambda f: f.name.split(".")[0])
def test_ids_of_whole_pages_serve_as_well_as_tokens(file: Path) -> None:
    """A trace brings chained ids of blocks, not tokens: the same steps must come out."""
    recording = load(file)
    page = recording["limits"]["page_size"]
    known: dict[tuple[int, ...], int] = {}
    ids = {}
    for request in recording["requests"]:
        units, before, chain = units_of(job(request).key), -1, []
        for at in range(0, len(units) // page * page, page):
            before = known.setdefault((before, *units[at : at + page]), len(known))
            chain.append(before)
        ids[request["id"]] = key_of(chain)
    for by_id, by_token in zip(steps(recording, ids), steps(recording), strict=True):
        evicted = [end * page for end, _, _ in by_id.pop("evicted")]
        assert evicted == [end for end, _, _ in by_token.pop("evicted")]
        assert by_id == by_token
