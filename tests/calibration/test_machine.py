"""What raw rows say of their machine: whether it was busy, which card it is, its facts, how it compares with others."""

from __future__ import annotations

from pathlib import Path

import pytest
from kvsim_calibration.backends import machine, measured
from kvsim_calibration.backends.store import Store

from kvsim.device import load_device
from kvsim.errors import InputError


@pytest.mark.parametrize(("device", "p80", "others", "warns"), [
    ("cpu", 1.05, (), False), ("cpu", 1.3, (), True), ("cpu", 1.3, (1.02, 1.6), False), ("cpu", 1.05, (1.5, 1.6), True),
    ("cuda:0", 1.3, (1.02,), True), ("cuda:0", 1.05, (1.5,), False),
])
def test_a_busy_machine_is_named(device: str, p80: float, others: tuple[float, ...], warns: bool, tmp_path: Path,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    from kvsim_calibration.backends.summary import report

    store, out = Store(tmp_path / "x.rows.jsonl"), tmp_path / "x.json"
    store.describe({"backend": "torch", "name": "x", "torch": "2", "cores": 1, "dtypes": ["fp32"],
                    "device": device})
    for visit, ns in enumerate((1.0, *others)):
        store.add({"case": "a", "visit": visit, "family": "ceiling", "what": "read", "bytes": 1, "ns": ns, "p20": ns,
                   "p80": p80 * ns})
    out.write_text("{}")
    report(load_device("cpu"), store, None, out, as_json=False)
    assert ("machine was busy" in capsys.readouterr().out) is warns


@pytest.mark.parametrize(("device", "time"), [("cuda:0", 11.0), ("cpu", 9.0)])
def test_a_case_is_the_median_of_its_visits_or_the_least_where_others_run(
    device: str, time: float, tmp_path: Path
) -> None:
    rows = [{"case": "a", "visit": i, "family": "linear", "ns": ns, "p20": 0.9 * ns, "p80": 1.1 * ns}
            for i, ns in enumerate((10.0, 90.0, 11.0))]
    store = Store(tmp_path / "x.rows.jsonl")
    store.describe({"backend": "torch", "device": device})
    for row in [*rows, {"case": "b", "failed": "x"}]:
        store.add(row)
    assert [row["ns"] for row in measured.merged(store)] == [time]
    spread = measured.spread(rows)
    assert spread.samples == pytest.approx(0.2) and spread.visits == pytest.approx(80 / 11)
    assert spread.least == pytest.approx(0.1)


@pytest.mark.parametrize(("name", "found"), [
    ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("NVIDIA H100 PCIe", "h100-pcie"), ("NVIDIA H200", "h200-sxm"),
    ("NVIDIA L40S", "l40s"), ("NVIDIA L4", "l4"), ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("AMD EPYC", "cpu-amd-epyc"),
    ("NVIDIA H100 NVL", "cpu-nvidia-h100-nvl"),
])
def test_a_card_is_known_by_its_drivers_name(name: str, found: str) -> None:
    assert machine.identifier({"name": name, "device": "cpu"}) == found


def test_facts_of_an_unknown_device_are_its_ceilings() -> None:
    about = {"name": "AMD EPYC", "device": "cpu", "arch": "x86_64", "memory_bytes": 1 << 34,
             "last_cache_bytes": 1 << 25, "cores": 2}
    facts = machine.facts(about, {"read": 2e10, "copy": 3e10, "gemm fp32": 1e11, "launch": 900.0})
    assert (facts.bandwidth, facts.flops, facts.sms) == (3e10, {"fp32": 1e11, "bf16": 1e11}, 2)
    with pytest.raises(InputError, match="--resume"):
        machine.facts(about, {"read": 2e10})


def test_ours_beside_a_published_profile_of_the_card() -> None:
    import polars as pl
    from kvsim_calibration.backends.beside import compared, published
    from kvsim_calibration.evaluate import predict
    from kvsim_calibration.rows import Rows

    known = load_device("h100-sxm")
    frame = pl.DataFrame({"dtype": ["bf16"] * 3, "n": [4096] * 3, "k": [4096] * 3, "m": [1, 16, 256]})
    frame = frame.with_columns(ns=2 * predict(known, "linear", frame))
    (line,) = compared([Rows("linear", frame, "ours", "")], known)
    assert line["median"] == pytest.approx(2.0) and line["points"] == 3
    assert published(known) is None  # an imported profile has nothing to be compared with
