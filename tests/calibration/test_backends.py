"""`kvsim calibrate` measures: grid, timing, raw rows, a run killed at a random moment, the profile that comes out."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kvsim_calibration.backends import clock, machine, measured, session  # noqa: E402
from kvsim_calibration.backends.cases import Case, Lost  # noqa: E402
from kvsim_calibration.backends.clock import Timing  # noqa: E402
from kvsim_calibration.backends.grid import Size, cases, ladder  # noqa: E402
from kvsim_calibration.backends.store import Store  # noqa: E402
from kvsim_calibration.backends.torchrun import TorchRun  # noqa: E402

from kvsim.cli import main  # noqa: E402
from kvsim.device import load_device  # noqa: E402
from kvsim.errors import InputError  # noqa: E402
from kvsim.model import load_model  # noqa: E402

TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 128,
    "max_position_embeddings": 256, "tie_word_embeddings": True, "torch_dtype": "float32"}
SIZE = Size(batch=2, context=128, chunk=32, cache_bytes=1 << 22, dtypes=("fp32",), blocks=(16,), copies=1 << 16)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "config.json"
    path.write_text(json.dumps(TINY))
    return path


@pytest.fixture(scope="module")
def grid(config: Path) -> list[Case]:
    return cases([load_model(config)], SIZE)


class Instant:
    """A backend that takes no time: what a case costs hangs on its name alone."""

    visits = 3

    def __init__(self) -> None:
        self.made: list[str] = []

    def time(self, case: Case) -> dict[str, Timing]:
        self.made.append(case.name)
        if case.values.get("window") == 1:
            raise RuntimeError("out of memory\nand more")
        ns = float(1000 + sum(map(ord, case.name)) % 977)
        columns = ("ns", "ns_mean", "ns_longest") if case.family == "skew" else ("ns",)
        return {column: Timing(ns, 0.9 * ns, 1.1 * ns, 5) for column in columns}


def test_the_grid_holds_every_family_and_comes_coarse_first(grid: list[Case]) -> None:
    families = {case.family for case in grid}
    assert families == {"ceiling", "decode", "prefill", "mixed", "linear", "memory", "step"}
    assert [case.level for case in grid] == sorted(case.level for case in grid)
    assert {case.family for case in grid if case.level == 0} == {"ceiling", "decode", "prefill", "linear", "memory"}
    assert len({case.name for case in grid}) == len(grid)
    decode = [case.values for case in grid if case.family == "decode"]
    assert {(v["kv_dtype"], v["block_size"]) for v in decode} >= {("fp32", 0), ("fp32", 16), ("int8", 16), ("int4", 16)}
    ops = {case.values["op"] for case in grid if case.family == "memory"}
    assert ops == {"append", "score", "copy", "host_copy", "norm", "rope", "act", "embed", "sample"}


def test_the_grid_follows_the_models_and_the_sizes(config: Path) -> None:
    large = Size(batch=8, context=512, chunk=64, cache_bytes=1 << 30, dtypes=("bf16", "fp32"), devices=2)
    found = cases([load_model("llama-3.1-8b"), load_model(config)], large)
    assert {(c.values["n"], c.values["k"]) for c in found if c.family == "linear"} >= {(6144, 4096), (28672, 4096),
                                                                                      (128, 64)}
    assert {case.family for case in found} >= {"skew", "collective"}
    assert max(c.values["length"] * c.values["n"] for c in found if c.family == "decode") == 8 * 512
    small = cases([load_model("llama-3.1-8b")], Size(8, 512, 64, 1 << 20, ("bf16",)))
    assert max(c.values["length"] * c.values["n"] for c in small
               if c.family == "decode" and c.values["kv_dtype"] == "bf16") * 4096 == 1 << 20
    heads = [c.values["m"] for c in small if c.family == "linear" and c.values["n"] == 128256]
    assert max(heads) == 8


def test_a_model_whose_attention_has_no_operator_is_refused() -> None:
    with pytest.raises(InputError, match="latent attention"):
        cases([load_model("deepseek-v3")], SIZE)


@pytest.mark.parametrize(("low", "high", "step", "found"), [(1, 9, 2, [1, 2, 4, 8]), (8, 8, 4, [8]), (16, 4, 2, [])])
def test_ladder(low: int, high: int, step: float, found: list[int]) -> None:
    assert ladder(low, high, step) == found


def test_every_kind_of_case_runs_on_this_cpu(grid: list[Case], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "SECONDS", 0.0)
    run = TorchRun(torch.device("cpu"), "fp32", 1 << 16, 1 << 22)
    kinds: dict[tuple[Any, ...], Case] = {}
    for case in grid:
        v = case.values
        kinds[case.family, v.get("op"), v.get("kv_dtype"), v.get("block_size"), v.get("what")] = case
    unequal = {"heads": 4, "kv_heads": 2, "head_dim": 16, "kv_dtype": "fp32", "window": 0, "block_size": 16,
               "tokens": 0, "context": 0, "n": 3, "mean": 20, "longest": 40}
    for case in (*kinds.values(), Case("skew", unequal)):
        timings = run.time(case)
        assert set(timings) == ({"ns", "ns_mean", "ns_longest"} if case.family == "skew" else {"ns"})
        assert all(0 < t.p20 <= t.median <= t.p80 for t in timings.values()), case.name


def test_buffer_sets_outgrow_the_last_cache_level_and_stay_within_memory() -> None:
    run = TorchRun(torch.device("cpu"), "fp32", last_cache_bytes=1000, most_bytes=10_000)
    assert [run.sets(b) for b in (10, 100, 1999, 2000, 6000, 20_000)] == [64, 20, 2, 1, 1, 1]


def test_paged_decode_attends_to_what_contiguous_decode_does() -> None:
    """Same rows in either layout give the same output: what is timed is the kernel it is called."""
    run, other = (TorchRun(torch.device("cpu"), "fp32", 1, 1 << 20) for _ in range(2))
    key = {"heads": 4, "kv_heads": 2, "head_dim": 16, "kv_dtype": "fp32"}
    flat, _ = run.cache({**key, "block_size": 0}, [40, 40], [1, 1])
    paged, _ = other.cache({**key, "block_size": 16}, [40, 40], [1, 1])
    for which in ("keys", "values"):
        for at in (0, 1):
            rows = getattr(flat.store, which)[0][flat.row[at]]
            for position, block in enumerate(paged.tables[at]):
                part = rows[16 * position : 16 * position + 16]
                getattr(paged.store, which)[0][block][: len(part)] = part
    q = torch.randn(2, 4, 16)
    assert torch.equal(flat.attend_kept(0, q), paged.attend_kept(0, q))


def test_timing_takes_buffers_in_turn_and_says_how_far_samples_lie_apart() -> None:
    seen: list[int] = []
    timing = clock.timed([lambda: seen.append(0) or time.sleep(0.001), lambda: seen.append(1) or time.sleep(0.001)])
    assert timing.p20 <= timing.median <= timing.p80 and timing.median >= 1e6
    assert timing.samples >= clock.LEAST and abs(seen.count(0) - seen.count(1)) <= 1


def test_every_launch_is_washed_before_and_the_wash_is_not_timed() -> None:
    order: list[str] = []

    def wash() -> None:
        order.append("wash")

    timing = clock.timed([lambda: order.append("launch")], wash=wash)
    timed_part = order[order.index("wash"):]
    assert timed_part[::2] == ["wash"] * timing.samples and timed_part[1::2] == ["launch"] * timing.samples


def test_visits_to_a_case_lie_apart_and_a_coarse_level_is_seen_twice_before_the_finest(grid: list[Case]) -> None:
    places = {(case.name, visit): at for at, (case, visit) in enumerate(session.order(grid, 3))}
    assert len(places) == 3 * len(grid)
    coarse, fine = ([case.name for case in grid if case.level == level] for level in (0, 2))
    assert max(places[name, 1] for name in coarse) < min(places[name, 0] for name in fine)
    assert next(iter(session.order(grid, 3)))[0].family == "ceiling"


def test_a_session_goes_on_where_another_stopped(grid: list[Case], tmp_path: Path) -> None:
    path, run = tmp_path / "x.rows.jsonl", Instant()
    store = Store(path)
    store.describe({"backend": "torch", "name": "x"})
    assert session.measure(grid, run, store, 0.0) == session.Outcome(0, 3 * len(grid))
    session.measure(grid[:40], run, store, 60.0)
    before = path.read_bytes()
    path.write_bytes(before[:-7])  # a kill in the middle of a line
    again = Store(path)
    outcome = session.measure(grid, run, again, 60.0)
    assert outcome.left == 0 and outcome.made == 3 * (len(grid) - 40) + 1
    assert path.read_bytes().startswith(before[:-7])
    kept = Store(path)
    assert sorted((r["case"], r["visit"]) for r in kept.rows) == sorted(
        (case.name, visit) for case in grid for visit in range(3))


def test_a_case_that_does_not_run_is_put_down_once_and_not_tried_again(grid: list[Case], tmp_path: Path) -> None:
    broken = Case("decode", {**next(c.values for c in grid if c.family == "decode"), "window": 1})
    run, store = Instant(), Store(tmp_path / "x.jsonl")
    session.measure([broken], run, store, 60.0)
    assert run.made == [broken.name] and store.rows[0]["failed"] == "out of memory"


def test_raw_rows_of_another_machine_are_not_mixed(tmp_path: Path) -> None:
    store = Store(tmp_path / "x.jsonl")
    store.describe({"name": "a", "cores": 2})
    with pytest.raises(InputError, match="cores 2, now 4"):
        Store(tmp_path / "x.jsonl").describe({"name": "a", "cores": 4})
    (tmp_path / "y.jsonl").write_text('{"a": 1}\n{"b": 2}\n')
    with pytest.raises(InputError, match="no raw rows"):
        Store(tmp_path / "y.jsonl")


@pytest.mark.parametrize(("device", "p80", "others", "warns"), [
    ("cpu", 1.05, (), False), ("cpu", 1.3, (), True), ("cpu", 1.3, (1.02, 1.6), False), ("cpu", 1.05, (1.5, 1.6), True),
    ("cuda:0", 1.3, (1.02,), True), ("cuda:0", 1.05, (1.5,), False),
])
def test_a_busy_machine_is_named(device: str, p80: float, others: tuple[float, ...], warns: bool, tmp_path: Path,
                                 capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.fixture
def cuda_on_cpu() -> Any:
    """The `cuda` backend on the kernels' CPU runner, timed by the host's clock."""
    from kvsim_kernels import host

    try:
        host.compiler()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    from kvsim_calibration.backends.cudarun import CudaRun

    def once(launches: Any) -> Timing:
        for launch in launches:
            launch()
        return Timing(1.0, 1.0, 1.0, 1)

    return CudaRun(torch.device("cpu"), "bf16", 1, 1 << 24, once)


KEY = {"heads": 4, "kv_heads": 1, "head_dim": 64, "window": 0}
CUDA_CASES = [
    Case("decode", {**KEY, "kv_dtype": "bf16", "block_size": 0, "n": 2, "length": 33}),
    Case("decode", {**KEY, "kv_dtype": "int8", "block_size": 16, "n": 1, "length": 20}),
    Case("prefill", {**KEY, "kv_dtype": "bf16", "block_size": 16, "chunks": 1, "tokens": 8, "context": 24}),
    Case("mixed", {**KEY, "kv_dtype": "bf16", "block_size": 16, "tokens": 8, "context": 0, "n": 2, "attended": 20}),
    Case("skew", {**KEY, "kv_dtype": "bf16", "block_size": 16, "tokens": 0, "context": 0, "n": 3, "mean": 20,
                  "longest": 40}),
    Case("memory", {"op": "append", "dtype": "bf16", "bytes": 1, "m": 3, **KEY, "block_size": 16}),
    Case("memory", {"op": "score", "dtype": "bf16", "bytes": 1, "m": 40, **KEY}),
    Case("memory", {"op": "copy", "dtype": "bf16", "bytes": 1, "m": 2, **KEY, "what": "blocks"}),
    Case("memory", {"op": "copy", "dtype": "bf16", "bytes": 1, "m": 1, **KEY, "what": "compact"}),
    Case("memory", {"op": "host_copy", "dtype": "bf16", "bytes": 1, "m": 2, **KEY, "what": "out"}),
    Case("memory", {"op": "host_copy", "dtype": "bf16", "bytes": 1, "m": 2, **KEY, "what": "in"}),
    Case("memory", {"op": "act", "dtype": "bf16", "bytes": 1, "m": 2, "inter": 16}),
    Case("linear", {"dtype": "bf16", "n": 16, "k": 32, "m": 3}),
]


@pytest.mark.parametrize("case", CUDA_CASES, ids=lambda case: case.name)
def test_the_cuda_backend_times_kernels_whose_results_are_right(cuda_on_cpu: Any, case: Case) -> None:
    assert set(cuda_on_cpu.time(case)) == ({"ns", "ns_mean", "ns_longest"} if case.family == "skew" else {"ns"})


def test_a_launch_that_computes_something_else_is_no_measurement(cuda_on_cpu: Any) -> None:
    cuda_on_cpu.timer = lambda launches: Timing(1.0, 1.0, 1.0, 1)  # nothing is launched: outputs stay poisoned
    with pytest.raises(RuntimeError, match="wrong result"):
        cuda_on_cpu.time(CUDA_CASES[0])


def test_a_lost_device_ends_the_run_and_spoils_one_case(grid: list[Case], tmp_path: Path) -> None:
    """After a bad address CUDA fails whatever is asked: the other cases must not be put down as failed."""
    bad = session.order(grid, 3)[3][0].name

    class Losing(Instant):
        def time(self, case: Case) -> dict[str, Timing]:
            if case.name == bad:
                raise Lost("the device is lost (CUDA error: an illegal memory access)")
            return super().time(case)

    store = Store(tmp_path / "x.rows.jsonl")
    store.describe({"name": "a GPU"})
    with pytest.raises(InputError, match=r"illegal memory access\), at .*: the rows are kept, go on with --resume"):
        session.measure(grid, Losing(), store, 60)
    again = Store(store.path)
    assert [row["case"] for row in again.rows if "failed" in row] == [bad] and len(again.rows) == 4
    assert session.measure(grid, Losing(), again, 60).left == 0
    assert {row["case"] for row in again.rows if "failed" in row} == {bad}


def test_an_error_after_which_the_device_is_silent_is_a_lost_device(
    cuda_on_cpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access\nand more")

    cuda_on_cpu._time = fails
    cuda_on_cpu.device = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "synchronize", fails)
    with pytest.raises(Lost, match=r"the device is lost \(CUDA error: an illegal memory access\)"):
        cuda_on_cpu.time(CUDA_CASES[0])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with pytest.raises(RuntimeError, match="and more"):
        cuda_on_cpu.time(CUDA_CASES[0])


def test_the_cuda_backend_times_bf16_only() -> None:
    from kvsim_calibration.backends.command import Asked, size_of

    with pytest.raises(InputError, match="--dtypes fp32: the cuda backend times bf16; others are for --backend torch"):
        size_of(Asked((), Path("x.json"), 1.0), torch.device("cpu"), "cuda", ("bf16", "fp32"))


@pytest.mark.parametrize(("options", "says"), [
    (["--out", "x.json", "--device", "cuda:7"], "--device cuda:7 can't be used"),
    (["--out", "x.json", "--device", "toaster"], "--device toaster can't be used"),
    (["--out", "x.json", "--device", "cpu", "--backend", "cuda"], "needs an NVIDIA GPU"),
    (["--out", "x.json", "--device", "cpu", "--backend", "torhc"], "did you mean torch"),
    (["--out", "x.json", "--device", "cpu", "--models", "lama-3.1-8b"], "did you mean"),
    (["--out", "x.json", "--device", "cpu", "--dtypes", "fp3"], "unknown dtype 'fp3'"),
    (["--out", "x.json", "--budget", "soon"], "duration 'soon'"),
    (["--out", "x.toml", "--device", "cpu"], "ends in .json"),
    (["--device", "cpu"], "--out FILE.json"),
    (["fit", "nowhere.jsonl", "--out", "x.json"], "no such file of raw rows"),
])
def test_what_cannot_be_measured_is_one_sentence(
    options: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["calibrate", *options]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1 and not list(tmp_path.iterdir())


def test_without_torch_the_installation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest))
    assert main(["calibrate", "--device", "cpu", "--out", str(tmp_path / "x.json")]) == 2
    assert "needs torch: pip install 'kvsim[calibrate]'" in capsys.readouterr().err


def test_rows_of_an_earlier_run_are_not_added_to_unasked(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.rows.jsonl").write_text('{"format": 1, "machine": {"name": "a"}}\n{"case": "a", "visit": 0}\n')
    assert main(arguments(config, tmp_path / "x.json")) == 2
    assert "--resume" in capsys.readouterr().err


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


def arguments(config: Path, out: Path, *more: str) -> list[str]:
    return ["calibrate", "--device", "cpu", "--threads", "1", "--models", str(config), "--max-batch", "2",
            "--max-context", "32", "--max-chunk", "8", "--dtypes", "fp32", "--out", str(out), *more]


def test_more_threads_than_cores_are_refused(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(config, tmp_path / "many.json", "--threads", "100000")) == 2
    assert "--threads is 100000" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_run_killed_at_a_random_moment_ends_with_the_same_rows(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "SECONDS", 0.0)
    out = tmp_path / "killed.json"
    raw = tmp_path / "killed.rows.jsonl"
    code = ("import sys; from kvsim.cli import main; from kvsim_calibration.backends import clock; "
            "clock.SECONDS = 0.0; sys.exit(main(sys.argv[1:]))")
    command = [sys.executable, "-c", code, *arguments(config, out, "--budget", "100s")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    lines = random.randint(2, 60)  # of several hundred
    while process.poll() is None and (not raw.exists() or raw.read_bytes().count(b"\n") < lines):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = raw.read_bytes()
    assert not out.exists()
    assert main(arguments(config, out, "--budget", "100s", "--resume")) == 0
    assert raw.read_bytes().startswith(before)
    size = Size(2, 32, 8, 1 << 30, ("fp32",), copies=1 << 27)
    wanted = {(case.name, visit) for case in cases([load_model(config)], size) for visit in range(TorchRun.visits)}
    rows = Store(raw).rows
    assert len(rows) == len(wanted) and {(row["case"], row["visit"]) for row in rows} == wanted
    assert load_device(out).tier == "measured"


@pytest.mark.parametrize(("flags", "says"), [
    (["--dtypes", ""], "names nothing"), (["--models", ","], "names nothing"),
    (["--max-context", "99999999999"], "tokens at most"),
])
def test_options_that_say_nothing_or_too_much(flags: list[str], says: str, tmp_path: Path,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--device", "cpu", "--out", str(tmp_path / "a.json"), *flags]) == 2
    assert says in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", [
    ["validate", "step", "--device", "cpu", "--profile", "h100-sxm"],
    ["calibrate", "generation", "h100-sxm", "--device", "cpu"],
])
def test_another_devices_profile_is_no_truth_for_this_one(command: list[str],
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command) == 2
    assert "is no profile of cpu" in " ".join(capsys.readouterr().err.split())
