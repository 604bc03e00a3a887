"""Cases → times of torch's operators, those that the reference engine runs, on any torch device.

Buffers rotate: a case gets as many sets (layers of one cache, weights) as together outgrow the last cache level, since
in a model a layer's weights and KV rows have left it by the time the layer runs again. On a CPU the cores' own caches
are washed before every launch: in a step, megabytes of weights pass through them between two small operators, which
take up to twice as long as in a loop of their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from kvsim_calibration.backends.arena import Arena, fill
from kvsim_calibration.backends.cases import Case, Values
from kvsim_calibration.backends.clock import Launch, Timing, timed
from kvsim_calibration.engine import ops
from kvsim_calibration.engine.caches import Batch, Contiguous, Paged, Rows, Store
from kvsim_calibration.engine.caches.store import Format
from kvsim_calibration.engine.model import Dims, Llama
from kvsim_calibration.engine.setup import DTYPES

Tensor = torch.Tensor
Launches = dict[str, list[Launch]]
"""column of a raw row → launches, one a buffer set"""
LAYERS, VOCABULARY = 4, 16
"""of the small model whose steps are timed as a whole"""
WASH_BYTES = 1 << 22
"""more than the second cache level of the cores together"""
WHOLE = ("ceiling", "step")
"""timed as they are: at their best, or whole"""
MOST_SETS = 64


class TorchRun:
    """Times cases on one torch device."""

    visits = 14
    """Short ones: a virtual CPU is at times half again as slow, for seconds or minutes, and of three visits of 0.15 s
    to a case one in eight never met it at its own speed."""

    def __init__(self, device: torch.device, main: str, last_cache_bytes: int, most_bytes: int) -> None:
        """`main`: the dtype of activations; `last_cache_bytes`: of the last cache level; `most_bytes`: that one case's
        buffer sets may take together."""
        self.device, self.main = device, DTYPES[main]
        self.cold_bytes, self.most_bytes = 2 * last_cache_bytes, most_bytes
        self.arena = Arena(device)
        self._wash = torch.ones(WASH_BYTES // 4).sum if device.type == "cpu" else None

    def time(self, case: Case) -> dict[str, Timing]:
        """Column (`ns` and, for unequal lengths, `ns_mean` and `ns_longest`) → timing of one visit."""
        with torch.inference_mode():
            wash = self._wash if case.family not in WHOLE else None
            return {column: timed(launches, self._wait(), wash) for column, launches in self.prepared(case).items()}

    def prepared(self, case: Case) -> Launches:
        """Buffers and launches of a case."""
        return _PREPARE[case.family](self, case.values)

    def _wait(self) -> Callable[[], None]:
        if self.device.type == "cpu":
            return lambda: None
        return getattr(torch, self.device.type).synchronize  # type: ignore[no-any-return]

    def sets(self, bytes_: int) -> int:
        """Buffer sets of `bytes_` each: beyond the last cache level together, within memory."""
        return max(1, min(MOST_SETS, -(-self.cold_bytes // max(1, bytes_)), self.most_bytes // max(1, bytes_)))

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Random numbers in memory of their own: what stays warm."""
        found = torch.empty(shape, dtype=dtype or self.main, device=self.device)
        fill(found.flatten())
        return found

    def cache(self, values: Values, lengths: Sequence[int], counts: Sequence[int]) -> tuple[Contiguous | Paged, int]:
        """A filled cache in which a batch of sequences has begun: `counts` new tokens each, `lengths` with them; and
        its layers, each a buffer set."""
        sequences, block = list(range(len(lengths))), values["block_size"]
        plain = values["kv_dtype"] in DTYPES
        kv_format: Format = "plain" if plain else values["kv_dtype"]
        dtype = DTYPES[values["kv_dtype"]] if plain else self.main
        shape = Rows(1, values["kv_heads"], values["head_dim"], dtype, torch.device("meta"))
        held: Contiguous | Paged
        if block:
            order = list(range(sum(-(-length // block) for length in lengths)))
            random.Random(1).shuffle(order)
            held = Paged(shape, len(order), block,
                         {s: [order.pop() for _ in range(-(-lengths[s] // block))] for s in sequences}, kv_format)
        else:
            held = Contiguous(shape, len(lengths), max(lengths), kv_format)
        layers = self.filled(held.store)
        before = [length - count for length, count in zip(lengths, counts, strict=True)]
        if any(before) and not block:
            held.begin(Batch(sequences, before, [0] * len(before)))
        held.begin(Batch(sequences, list(counts), before))
        return held, layers

    def filled(self, store: Store) -> int:
        """Give a store without memory (of one layer on torch's meta device) random rows, as many layers as rotate; how
        many those are."""
        layers = self.sets(store.nbytes)
        store.rows = replace(store.rows, layers=layers, device=self.device)
        rows = self.arena.views(2 * layers, tuple(store.keys[0].shape), store.keys[0].dtype)
        store.keys, store.values = rows[:layers], rows[layers:]
        if store.scales:
            scales = torch.empty(store.scales[0].shape, dtype=torch.float16, device=self.device).uniform_(0.005, 0.02)
            store.scales = [scales] * layers
        return layers

    def attending(self, values: Values, lengths: Sequence[int], counts: Sequence[int]) -> list[Launch]:
        """Attention of a batch over what is cached, each launch in another layer."""
        cache, layers = self.cache(values, lengths, counts)
        q = self.normal(sum(counts), values["heads"], values["head_dim"], dtype=cache.store.rows.dtype)
        return [partial(cache.attend_kept, layer, q) for layer in range(layers)]


def _decode(run: TorchRun, v: Values) -> Launches:
    return {"ns": run.attending(v, [v["length"]] * v["n"], [1] * v["n"])}


def _prefill(run: TorchRun, v: Values) -> Launches:
    return {"ns": run.attending(v, [v["context"] + v["tokens"]] * v["chunks"], [v["tokens"]] * v["chunks"])}


def _mixed(run: TorchRun, v: Values) -> Launches:
    lengths = [v["context"] + v["tokens"], *[v["attended"]] * v["n"]]
    return {"ns": run.attending(v, lengths, [v["tokens"], *[1] * v["n"]])}


def _skew(run: TorchRun, v: Values) -> Launches:
    n, mean, longest = v["n"], v["mean"], v["longest"]
    shorter = (n * mean - longest) // (n - 1)
    lengths = [longest, *[shorter] * (n - 1)]
    lengths[-1] += n * mean - sum(lengths)
    each = {"ns": lengths, "ns_mean": [mean] * n, "ns_longest": [longest] * n}
    return {column: run.attending(v, batch, [1] * n) for column, batch in each.items()}


def _linear(run: TorchRun, v: Values) -> Launches:
    n, k, dtype = v["n"], v["k"], DTYPES[v["dtype"]]
    x = run.normal(v["m"], k, dtype=dtype)
    weights = run.arena.views(run.sets(n * k * dtype.itemsize), (n, k), dtype)
    return {"ns": [partial(ops.linear, x, w) for w in weights]}


def _memory(run: TorchRun, v: Values) -> Launches:
    return {"ns": _MEMORY[v["op"]](run, v)}


def _append(run: TorchRun, v: Values) -> list[Launch]:
    values = {**v, "kv_dtype": v["dtype"]}
    cache, layers = run.cache(values, [v["m"]], [v["m"]])
    shape, dtype = (v["m"], v["kv_heads"], v["head_dim"]), cache.store.rows.dtype
    k, new = run.normal(*shape, dtype=dtype), run.normal(*shape, dtype=dtype)
    return [partial(cache.write, layer, k, new) for layer in range(layers)]


def _score(run: TorchRun, v: Values) -> list[Launch]:
    """What heavy-hitter eviction adds to attention: the probabilities of one query, summed over a group."""
    row = v["m"] * v["kv_heads"] * v["head_dim"] * run.main.itemsize
    keys = run.arena.views(run.sets(row), (v["m"], v["kv_heads"], v["head_dim"]), run.main)
    q = run.normal(1, v["heads"], v["head_dim"])
    total = torch.zeros(v["kv_heads"], v["m"], device=run.device)

    def score(k: Tensor) -> None:
        got = ops.probabilities(q, k).sum(1)
        total.add_(got.view(v["kv_heads"], -1, got.shape[-1]).sum(1))

    return [partial(score, k) for k in keys]


def _copy(run: TorchRun, v: Values) -> list[Launch]:
    """blocks: some of a layer's blocks to others. compact: tokens that stay move to the front, head by head."""
    tokens = 16 * v["m"]
    rows = Rows(1, v["kv_heads"], v["head_dim"], run.main, torch.device("meta"))
    if v["what"] == "compact":
        store = Store(rows, (1, 2 * tokens))
        stay = torch.stack([torch.randperm(2 * tokens)[:tokens].sort()[0] for _ in range(v["kv_heads"])])
        return [partial(store.keep, layer, 0, stay.to(run.device)) for layer in range(run.filled(store))]
    store = Store(rows, (2 * v["m"], 16))
    order = torch.randperm(2 * v["m"], device=run.device)
    old, new = order[: v["m"]], order[v["m"] :]

    def move(layer: int) -> None:
        for plane in (store.keys[layer], store.values[layer]):
            plane.index_copy_(0, new, plane.index_select(0, old))

    return [partial(move, layer) for layer in range(run.filled(store))]


def _host_copy(run: TorchRun, v: Values) -> list[Launch]:
    """A cache's bytes between the device and host memory, pinned where that is another memory."""
    numbers = v["bytes"] // run.main.itemsize
    count = run.sets(2 * v["bytes"])
    if run.device.type == "cpu":
        both = run.arena.views(2 * count, (numbers,), run.main)
        here, there = both[:count], both[count:]
    else:
        here = run.arena.views(count, (numbers,), run.main)
        there = [torch.empty(numbers, dtype=run.main, pin_memory=run.device.type == "cuda").copy_(x) for x in here]
    pairs = zip(there, here, strict=True) if v["what"] == "out" else zip(here, there, strict=True)
    return [partial(target.copy_, source, non_blocking=True) for target, source in pairs]


def _norm(run: TorchRun, v: Values) -> list[Launch]:
    x, residual = (run.normal(v["m"], v["hidden"]) for _ in range(2))
    weight = run.normal(v["hidden"])
    return [lambda: ops.add_norm(x, residual, weight, 1e-5)]


def _rope(run: TorchRun, v: Values) -> list[Launch]:
    x = run.normal(v["m"], (v["heads"] + 2 * v["kv_heads"]) * v["head_dim"])
    turned = x[:, : (v["heads"] + v["kv_heads"]) * v["head_dim"]].view(v["m"], -1, v["head_dim"])
    cos, sin = ops.rotations(torch.arange(v["m"], device=run.device), v["head_dim"], 1e4, run.main)
    return [lambda: ops.rotate(turned, cos, sin)]


def _act(run: TorchRun, v: Values) -> list[Launch]:
    x = run.normal(v["m"], 2 * v["inter"])
    return [lambda: ops.gated(x)]


def _embed(run: TorchRun, v: Values) -> list[Launch]:
    (table,) = run.arena.views(1, (v["vocab"], v["hidden"]), run.main)
    draws = [torch.randint(v["vocab"], (v["m"],), device=run.device) for _ in range(MOST_SETS)]
    return [partial(table.__getitem__, tokens) for tokens in draws]


def _sample(run: TorchRun, v: Values) -> list[Launch]:
    logits = run.normal(v["m"], v["vocab"])
    return [lambda: logits.argmax(-1)]


_MEMORY: dict[str, Callable[[TorchRun, Values], list[Launch]]] = {
    "append": _append, "score": _score, "copy": _copy, "host_copy": _host_copy, "norm": _norm, "rope": _rope,
    "act": _act, "embed": _embed, "sample": _sample,
}


def _ceiling(run: TorchRun, v: Values) -> Launches:
    if v["what"] == "launch":
        one = run.normal(1)
        return {"ns": [lambda: one.add_(1)]}
    if v["what"] == "gemm":
        a, b = (run.normal(v["side"], v["side"], dtype=DTYPES[v["dtype"]]) for _ in range(2))
        return {"ns": [lambda: ops.linear(a, b)]}
    source, target = run.arena.views(2, (v["bytes"] // run.main.itemsize,), run.main)
    if v["what"] == "read":
        return {"ns": [source.sum]}
    return {"ns": [lambda: target.copy_(source)]}


def _step(run: TorchRun, v: Values) -> Launches:
    """A decode step of LAYERS layers, of a model whose small vocabulary costs nothing."""
    n, length = v["n"], v["length"]
    dims = Dims(LAYERS, v["hidden"], v["heads"], v["kv_heads"], v["head_dim"], v["inter"], vocab=VOCABULARY, tied=True)
    weights = {name: run.normal(*shape) for name, shape in dims.shapes().items()}
    blocks = -(-length // 16)
    tables = {s: list(range(s * blocks, (s + 1) * blocks)) for s in range(n)}
    cache = Paged(Rows(LAYERS, dims.kv_heads, dims.head_dim, run.main, run.device), n * blocks, 16, tables)
    for tensor in (*cache.store.keys, *cache.store.values):
        fill(tensor.flatten())
    model, tokens = Llama(dims, weights), torch.zeros(n, dtype=torch.long, device=run.device)
    step = Batch(list(range(n)), [1] * n, [length - 1] * n)
    return {"ns": [lambda: model(tokens, step, cache)]}


def all_reduce(run: TorchRun, v: Values) -> Launches:
    """NCCL's, of one process over all devices."""
    buffers = [torch.ones(v["bytes"] // 2, dtype=torch.bfloat16, device=f"cuda:{i}") for i in range(v["gpus"])]
    return {"ns": [lambda: torch.cuda.nccl.all_reduce(buffers)]}  # type: ignore[no-untyped-call]


_PREPARE: dict[str, Callable[[TorchRun, Values], Launches]] = {
    "decode": _decode, "prefill": _prefill, "mixed": _mixed, "skew": _skew, "linear": _linear, "memory": _memory,
    "ceiling": _ceiling, "step": _step, "collective": all_reduce,
}
