"""Forms for a device that nobody measured, and how far off they are.

One set of constants for all devices, fitted to the bf16 and fp8 tables of six GPUs (A100, H100, H200, L40S, B200,
RTX PRO 6000) in NVIDIA's aiconfigurator-core 0.12.0 and to the layer tables of LLMServingSim; `benchmarks/forms.py`
prints the fit. The errors are those over all rows of all six: what to expect on a seventh.
"""

from __future__ import annotations

from kvsim.device.forms import CollectiveForm, DecodeForm, MatmulForm, MemoryForm, PrefillForm
from kvsim.device.provenance import HeldOutError

DECODE = DecodeForm(fixed_ns=10_600, per_head_ns=20.5, fill=1.4, efficiency=0.92)
DECODE_ERROR = HeldOutError(median=0.12, p95=0.47, bias=0.0, rows=61_555)

PREFILL = PrefillForm(fixed_ns=11_700, per_chunk_ns=29, tile=64, flop_efficiency=0.46, byte_efficiency=0.34)
PREFILL_ERROR = HeldOutError(median=0.21, p95=0.88, bias=0.0, rows=67_250)

LINEAR = MatmulForm(fixed_ns=3_500, tile=128, flop_efficiency=0.75, byte_efficiency=0.83)
LINEAR_ERROR = HeldOutError(median=0.10, p95=0.37, bias=0.0, rows=122_262)

LINEAR_FP8 = MatmulForm(fixed_ns=7_500, tile=128, flop_efficiency=0.45, byte_efficiency=0.81)
LINEAR_FP8_ERROR = HeldOutError(median=0.19, p95=0.67, bias=0.0, rows=116_256)
"""also for int8 and the 4-bit formats, of which no table is generic enough: a guess, marked as one"""

MOE = MatmulForm(fixed_ns=32_800, tile=16, flop_efficiency=0.33, byte_efficiency=0.85)
MOE_ERROR = HeldOutError(median=0.18, p95=0.72, bias=0.0, rows=39_534)

MEMORY = MemoryForm(fixed_ns=2_500, efficiency=0.8)
SAMPLE = MemoryForm(fixed_ns=25_000, efficiency=0.5)
MEMORY_ERROR = HeldOutError(median=0.25, p95=0.6, bias=0.0)

COLLECTIVE = CollectiveForm(fixed_ns=5_900, efficiency=0.56)
COLLECTIVE_ERROR = HeldOutError(median=0.24, p95=0.79, bias=0.0, rows=414)


def linear_form(dtype: str) -> tuple[MatmulForm, HeldOutError]:
    """The form of a linear layer with weights of `dtype`."""
    return (LINEAR, LINEAR_ERROR) if dtype in ("fp32", "bf16", "fp16") else (LINEAR_FP8, LINEAR_FP8_ERROR)


def memory_form(op: str) -> MemoryForm:
    """The form of a kernel that only moves bytes."""
    return SAMPLE if op == "sample" else MEMORY
