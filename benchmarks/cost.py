"""What a cost costs: `python benchmarks/cost.py [DEVICE]` prints µs a call and the ratios that decide the crossover.

Numbers are the best of several repeats; on a shared machine compare the ratios, not the µs."""

from __future__ import annotations

import sys
import time
import timeit
from collections.abc import Callable

from kvsim.cost import CostModel, HostOverhead, StepShape
from kvsim.cost import model as cost_model
from kvsim.device import load_device
from kvsim.model import load_model


def best_us(call: Callable[[], object], number: int = 200) -> float:
    """µs a call, the best of 15 repeats."""
    return min(timeit.repeat(call, number=number, repeat=15)) / number * 1e6


def decoding(n: int, context: int = 1000) -> StepShape:
    return StepShape(decode=n, attended=(n * context,), longest=(context,), growing=(n,), longest_grows=(True,),
                     sampled=n)


def main() -> None:
    started = time.perf_counter()
    device = load_device(sys.argv[1] if len(sys.argv) > 1 else "h100-sxm")
    loaded = time.perf_counter()
    model = CostModel.of(load_model("llama-3.1-8b"), device, HostOverhead(exposed_ns=5e5, exposed_per_sequence_ns=2e3))
    built = time.perf_counter()
    for n in range(1, 129):
        model.step(decoding(n))
    print(f"{device.id}: load {(loaded - started) * 1e3:.1f} ms, build {(built - loaded) * 1e3:.1f} ms, "
          f"first step of 128 batch sizes {(time.perf_counter() - built) * 1e3:.1f} ms")

    small, large = decoding(8), decoding(512)
    few, many = best_us(lambda: model.step(small)), best_us(lambda: model.step(large))
    print(f"decode step      {few:6.2f} µs with 8 sequences, {many:.2f} µs with 512: × {many / few:.2f}")
    mixed = decoding(64)
    mixed.chunks = ((512, 1000),)
    print(f"step with chunk  {best_us(lambda: model.step(mixed)):6.2f} µs")

    print("decode_run of k    Python      NumPy   Python ÷ NumPy")
    shape = decoding(64)
    for k in (1, 2, 4, 8, 12, 16, 32, 64, 256):
        took = []
        for crossover in (10**9, 0):
            cost_model.SCALAR_RUN = crossover
            took.append(best_us(lambda k=k: model.decode_run(shape, k)))
        print(f"{k:15d} {took[0]:9.2f} {took[1]:10.2f} {took[0] / took[1]:12.2f}")


if __name__ == "__main__":
    main()
