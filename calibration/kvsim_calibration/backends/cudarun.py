"""Cases → times of kvsim's CUDA kernels and of torch's GEMM: CUDA graphs of launches over rotating buffers, replayed.

The subjects (buffers, launch, comparison with float64) are those of the kernels' own benchmark: a launch whose result
is wrong is no measurement (batches of unequal lengths are looked through for NaN only). What torch computes in the
model (linear layers, norms, …) is timed as in `torchrun`, in graphs too; whole steps and copies between devices run
without a graph, with the host's time in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from kvsim_kernels.decode import decode_attention, default_splits, workspace_size
from kvsim_kernels.speed import cacheops
from kvsim_kernels.speed.attention import Shape, decode_subject, filled, prefill_subject
from kvsim_kernels.speed.limits import normal
from kvsim_kernels.speed.points import Subject
from kvsim_kernels.speed.timing import timed as replayed

from kvsim_calibration.backends.cases import Case, Lost, Values
from kvsim_calibration.backends.clock import Launch, Timing
from kvsim_calibration.backends.torchrun import TorchRun

Timer = Callable[[Sequence[Launch]], Timing]
WRONG = 1e-2
"""relative error from which a result is wrong, whatever the format"""
UNGRAPHED = ("step", "collective", "ceiling")


def graphs(launches: Sequence[Launch]) -> Timing:
    """Time launches by the kernels' own timer."""
    def quiet(launch: Launch) -> None:
        launch()

    found = replayed([partial(quiet, launch) for launch in launches])
    return Timing(found.median_ns, found.p20_ns, found.p80_ns, found.replays)


class CudaRun(TorchRun):
    """Times cases on one NVIDIA GPU."""

    visits = 3

    def __init__(self, device: torch.device, main: str, last_cache_bytes: int, most_bytes: int,
                 timer: Timer = graphs) -> None:
        super().__init__(device, main, last_cache_bytes, most_bytes)
        self.cold_bytes = 5 * last_cache_bytes
        self.timer = timer

    def time(self, case: Case) -> dict[str, Timing]:
        """Column → timing of one visit. Raises RuntimeError where a result is wrong, Lost where the device is gone."""
        try:
            return self._time(case)
        except RuntimeError as error:
            if self._lost():
                raise Lost(f"the device is lost ({str(error).splitlines()[0][:120]})") from error
            raise

    def _lost(self) -> bool:
        """Whether an error has ended the CUDA context, or left a capture open."""
        if self.device.type != "cuda":
            return False
        try:
            torch.cuda.synchronize(self.device)
            return torch.cuda.is_current_stream_capturing()
        except RuntimeError:
            return True

    def _time(self, case: Case) -> dict[str, Timing]:
        if case.family in UNGRAPHED and case.values.get("what") not in ("read", "copy"):
            return super().time(case)
        with torch.inference_mode():
            if (subjects := _subjects(self, case)) is None:
                return {column: self.timer(launches) for column, launches in self.prepared(case).items()}
            timings = {column: self.timer([one.launch for one in sets]) for column, sets in subjects.items()}
            for sets in subjects.values():
                if not sets[-1].error() <= WRONG:
                    raise RuntimeError(f"wrong result: error {sets[-1].error():.2g}")
        return timings

    def many(self, make: Callable[[int], Subject], bytes_: int) -> list[Subject]:
        """Subjects on buffer sets of `bytes_` each."""
        return [make(100 * i) for i in range(self.sets(bytes_))]


def _subjects(run: CudaRun, case: Case) -> dict[str, list[Subject]] | None:
    """Column → subjects; None for what torch computes."""
    v, device = case.values, run.device
    if case.family in ("decode", "prefill"):
        return {"ns": _attention(run, v, case.family)}
    if case.family == "mixed":
        chunk = _shape(v, 1, v["context"] + v["tokens"], v["tokens"])
        batch = _shape(v, v["n"], v["attended"])
        return {"ns": run.many(lambda seed: _both(prefill_subject(chunk, "flash", device, seed),
                                                  decode_subject(batch, "tensor-cores", device, seed + 1)),
                               chunk.cache_bytes + batch.cache_bytes)}
    if case.family == "skew":
        n, mean, longest = v["n"], v["mean"], v["longest"]
        shorter = (n * mean - longest) // (n - 1)
        batches = {"ns": [longest, *[shorter] * (n - 1)], "ns_mean": [mean] * n, "ns_longest": [longest] * n}
        return {column: run.many(partial(_unequal, v, lengths, device), _shape(v, n, longest).cache_bytes)
                for column, lengths in batches.items()}
    if case.family == "memory" and v["op"] in _MEMORY:
        return {"ns": _MEMORY[v["op"]](run, v)}
    return None


def _shape(v: Values, batch: int, length: int, queries: int = 1) -> Shape:
    return Shape(batch, length, queries, v["kv_heads"], v["heads"] // v["kv_heads"], v["head_dim"],
                 v.get("kv_dtype", "bf16"), 32, v.get("block_size", 0))


def _attention(run: CudaRun, v: Values, family: str) -> list[Subject]:
    if family == "decode":
        shape = _shape(v, v["n"], v["length"])
        return run.many(lambda seed: decode_subject(shape, "tensor-cores", run.device, seed), shape.cache_bytes)
    shape = _shape(v, v["chunks"], v["context"] + v["tokens"], v["tokens"])
    return run.many(lambda seed: prefill_subject(shape, "flash", run.device, seed), shape.cache_bytes)


def _both(first: Subject, second: Subject) -> Subject:
    def launch() -> None:
        first.launch()
        second.launch()

    return Subject(launch, lambda: max(first.error(), second.error()))


def _unequal(v: Values, lengths: list[int], device: torch.device, seed: int) -> Subject:
    """Decode attention of a batch of these lengths; the kernel plans for the longest."""
    shape = _shape(v, len(lengths), max(lengths))
    cache, table = filled(shape, device, seed)
    q = normal((len(lengths), v["heads"], v["head_dim"]), device, seed + 1)
    out, tokens = torch.full_like(q, torch.nan), torch.tensor(lengths, dtype=torch.int32, device=device)
    splits = default_splits(q, cache, max(lengths), "tensor-cores")
    workspace = torch.empty(workspace_size(*q.shape, splits), dtype=torch.float32, device=device)
    attend = partial(decode_attention, q, cache, tokens, block_table=table, kernel="tensor-cores", splits=splits,
                     out=out, workspace=workspace, check_contents=False)

    def launch() -> None:
        attend()

    return Subject(launch, lambda: float("nan") if bool(out.isnan().any()) else 0.0)


def _append(run: CudaRun, v: Values) -> list[Subject]:
    shape = Shape(v["m"], 16, kv_heads=v["kv_heads"], head_dim=v["head_dim"], format=v["dtype"], block_size=16)
    return run.many(lambda seed: cacheops.append_subject(shape, run.device, seed), shape.cache_bytes // 16)


def _score(run: CudaRun, v: Values) -> list[Subject]:
    shape = _shape({**v, "block_size": 16}, 1, v["m"])
    return run.many(lambda seed: cacheops.score_subject(shape, run.device, seed), shape.cache_bytes // 2)


def _copy(run: CudaRun, v: Values) -> list[Subject]:
    if v["what"] == "compact":
        tokens = 16 * v["m"]
        shape = Shape(1, 2 * tokens, kv_heads=v["kv_heads"], head_dim=v["head_dim"])
        return run.many(lambda seed: cacheops.compact_subject(shape, tokens, run.device, seed), shape.cache_bytes)
    return _blocks(run, v, "device")


def _host_copy(run: CudaRun, v: Values) -> list[Subject]:
    return _blocks(run, v, v["what"])


def _blocks(run: CudaRun, v: Values, where: str) -> list[Subject]:
    shape = Shape(2 * v["m"], 16, kv_heads=v["kv_heads"], head_dim=v["head_dim"], block_size=16)
    return run.many(lambda seed: cacheops.copy_subject(shape, v["m"], where, run.device, seed), shape.cache_bytes)


_MEMORY: dict[str, Callable[[CudaRun, Values], list[Subject]]] = {
    "append": _append, "score": _score, "copy": _copy, "host_copy": _host_copy,
}
