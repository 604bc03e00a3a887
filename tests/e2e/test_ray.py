"""A sweep over a real Ray cluster of two nodes on this machine: a worker is killed and a node is lost on the way, and
the results are byte for byte those of a sweep without Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from kvsim.errors import InputError
from kvsim.sweep import Store, read_sweep, sweep
from kvsim.sweep.on_ray import Ray
from kvsim.workers import Local

ray = pytest.importorskip("ray", reason="SKIPPED LOUDLY: ray is not installed (pip install 'kvsim[cluster]')")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SWEEP = """
[base]
trace = "synth:chat?requests=1500&rate=6"
model = "llama-3.1-8b"
device = "l40s"
max_model_len = 8192
[grid]
policy = ["paged", "paged-prefix", "paged-int8"]
rate_scale = [0.5, 1, 1.5, 2]
"""


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "runs").iterdir()}


def finished(folder: Path, runs: int) -> None:
    """Wait until so many runs are stored."""
    until = time.monotonic() + 120
    while len(list((folder / "runs").glob("*"))) < runs and time.monotonic() < until:
        time.sleep(0.02)


def test_a_killed_worker_and_a_lost_node_change_nothing(tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP)
    scenarios = read_sweep(file)
    here, there = tmp_path / "here", tmp_path / "there"
    assert sweep(scenarios, Store(here), executor=Local(2)).failed == {}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    killed: list[int] = []

    def trouble() -> None:
        finished(there, 2)
        found = subprocess.run(["pgrep", "-f", "ray::attempt"], capture_output=True, text=True).stdout.split()
        for pid in found[:1]:
            os.kill(int(pid), signal.SIGKILL)
            killed.append(int(pid))
        finished(there, 6)
        cluster.remove_node(second, allow_graceful=False)

    thread = threading.Thread(target=trouble, daemon=True)
    thread.start()
    try:
        outcome = sweep(scenarios, Store(there), executor=Ray(cluster.address))
        thread.join(timeout=60)
    finally:
        cluster.shutdown()
    assert killed, "no worker was running to be killed: make the sweep longer"
    assert outcome.failed == {} and outcome.ran == len(scenarios)
    assert content(here) == content(there)


def test_no_cluster_is_one_sentence() -> None:
    with pytest.raises(InputError, match="no Ray cluster answers there"):
        list(Ray("127.0.0.1:1").run(len, None, [1]))
