"""Forms for a device that nobody measured, and how far off they are.

One set of constants for all GPUs, fitted to the bf16 and fp8 tables of six (A100, H100, H200, L40S, B200, RTX PRO
6000) in NVIDIA's aiconfigurator-core 0.12.0; `benchmarks/forms.py` prints the fit. Each error is over the rows of
every GPU under constants fitted to the five others: what to expect on a seventh. Memory-bound kernels follow the
elementwise layers in LLMServingSim's tables of two GPUs, by eye.
The constants for CPUs are a guess, and their errors say so: calibrate the machine.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.device.facts import Facts
from kvsim.device.forms import CollectiveForm, DecodeForm, MatmulForm, MemoryForm, PrefillForm
from kvsim.device.provenance import HeldOutError


@dataclass(frozen=True, slots=True)
class Forms:
    """A form for each family of kernels with its error."""

    decode: DecodeForm
    decode_error: HeldOutError
    prefill: PrefillForm
    prefill_error: HeldOutError
    linear: MatmulForm
    linear_error: HeldOutError
    linear_small: MatmulForm
    """weights of 8 bits and fewer"""
    linear_small_error: HeldOutError
    moe: MatmulForm
    moe_error: HeldOutError
    memory: MemoryForm
    sample: MemoryForm
    memory_error: HeldOutError
    collective: CollectiveForm
    collective_error: HeldOutError

    def matmul(self, dtype: str) -> tuple[MatmulForm, HeldOutError]:
        """The form of a linear layer with weights of `dtype`."""
        wide = dtype in ("fp32", "bf16", "fp16")
        return (self.linear, self.linear_error) if wide else (self.linear_small, self.linear_small_error)


GPU = Forms(
    decode=DecodeForm(fixed_ns=10_990, per_head_ns=19.4, fill=1.65, efficiency=0.875),
    decode_error=HeldOutError(median=0.12, p95=0.58, bias=0.03, rows=61_555),
    prefill=PrefillForm(fixed_ns=11_320, per_chunk_ns=51, tile=64, flop_efficiency=0.542, byte_efficiency=0.520),
    prefill_error=HeldOutError(median=0.20, p95=0.86, bias=0.02, rows=67_250),
    linear=MatmulForm(fixed_ns=3_750, tile=16, flop_efficiency=0.72, byte_efficiency=0.806),
    linear_error=HeldOutError(median=0.11, p95=0.40, bias=0.03, rows=122_262),
    linear_small=MatmulForm(fixed_ns=8_370, tile=16, flop_efficiency=0.43, byte_efficiency=0.754),
    linear_small_error=HeldOutError(median=0.22, p95=0.85, bias=0.04, rows=116_256),
    moe=MatmulForm(fixed_ns=33_700, tile=16, flop_efficiency=0.32, byte_efficiency=0.82),
    moe_error=HeldOutError(median=0.18, p95=0.76, bias=0.02, rows=39_534),
    memory=MemoryForm(fixed_ns=2_500, efficiency=0.8),
    sample=MemoryForm(fixed_ns=25_000, efficiency=0.5),
    memory_error=HeldOutError(median=0.25, p95=0.6),
    collective=CollectiveForm(fixed_ns=5_830, efficiency=0.56),
    collective_error=HeldOutError(median=0.30, p95=0.81, bias=0.02, rows=414),
)

_GUESS = HeldOutError(median=0.4, p95=1.5)
CPU = Forms(
    decode=DecodeForm(fixed_ns=20_000, per_head_ns=500, fill=0, efficiency=0.5, flop_efficiency=0.2),
    decode_error=_GUESS,
    prefill=PrefillForm(fixed_ns=20_000, tile=1, flop_efficiency=0.4, byte_efficiency=0.5),
    prefill_error=_GUESS,
    linear=MatmulForm(fixed_ns=5_000, flop_efficiency=0.6, byte_efficiency=0.7),
    linear_error=_GUESS,
    linear_small=MatmulForm(fixed_ns=5_000, flop_efficiency=0.4, byte_efficiency=0.6),
    linear_small_error=_GUESS,
    moe=MatmulForm(fixed_ns=20_000, flop_efficiency=0.4, byte_efficiency=0.6),
    moe_error=_GUESS,
    memory=MemoryForm(fixed_ns=5_000, efficiency=0.5),
    sample=MemoryForm(fixed_ns=50_000, efficiency=0.3),
    memory_error=_GUESS,
    collective=CollectiveForm(fixed_ns=50_000, efficiency=0.3),
    collective_error=_GUESS,
)


def forms(facts: Facts) -> Forms:
    """The forms for a device with these facts."""
    return GPU if facts.arch.startswith(("sm_", "gfx")) else CPU
