"""The radix tree alone, against every call that SGLang's scheduler made to its own."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.cache.radix import Key, Node, RadixTree

Recording = dict[str, Any]


def tokens_of(request: Recording) -> Key:
    """Prompt and generated tokens, as the recorder made them up."""
    start, end = len(request["prompt"]), len(request["prompt"]) + request["output_tokens"]
    answer = [1000 + (request["id"] * 7919 + p * 104729) % 40000 for p in range(start, end)]
    return np.array(request["prompt"] + answer, np.int64)


def name_of(tokens: Key) -> list[Any]:
    """A node as recordings name it: length and hash of the path to its end."""
    text = ",".join(map(str, tokens.tolist()))
    return [len(tokens), hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""]


def find(tree: RadixTree, name: list[Any], paths: dict[str, Key]) -> Node:
    """The node of that name, without a walk that would refresh it."""
    node, tokens = tree.root, paths[name[1]]
    while node.end < name[0]:
        node = node.children[tokens[node.end : node.end + tree.page].tobytes()]
    assert node.end == name[0]
    return node


def replay(recording: Recording) -> int:
    """All calls in order; results and states must be those recorded. Returns how many calls there were."""
    limits = recording["limits"]
    tree = RadixTree(limits["page_size"], limits["eviction"])
    tokens = {r["id"]: tokens_of(r) for r in recording["requests"]}
    paths = {"": tree.root.key}
    count = 0
    for step in recording["steps"]:
        for call in step["calls"] + step["calls_after"]:
            key = tokens[call["request"]][: call["length"]] if "request" in call else tree.root.key
            match call["call"]:
                case "match":
                    node = tree.match(key)
                    assert node.end == call["matched"]
                    paths[name_of(key[: node.end])[1]] = key[: node.end]
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
                    assert sum(len(node.key) for node in gone) == call["evicted"]
                    assert [[*name_of(node.path()), len(node.key)] for node in gone] == call["leaves"]
            assert [tree.size, tree.evictable, tree.protected] == call["state"][:3]
            count += 1
        tree.check()
    return count


@pytest.mark.shared
def test_every_recorded_call(shared: Path) -> None:
    files = sorted((shared / "oracle").glob("sglang_*.json.gz"))
    assert files
    for file in files:
        assert replay(json.loads(gzip.decompress(file.read_bytes()))) > 0, file
