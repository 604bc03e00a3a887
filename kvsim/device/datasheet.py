"""Forms for a device that nobody measured, and how far off they are.

One set of constants for all GPUs, fitted to the bf16 and fp8 tables of six (A100, H100, H200, L40S, B200, RTX PRO
6000) in NVIDIA's aiconfigurator-core 0.12.0; `benchmarks/forms.py` prints the fit. Each error is over the rows of
every GPU under constants fitted to the five others: what to expect on a seventh. Memory-bound kernels follow the
elementwise layers in LLMServingSim's tables of two GPUs, by eye.
AMD's are the same, slower by what the MI300X reaches of its peak in published tests.
The constants for CPUs are a guess, and their errors say so: calibrate the machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvsim.device.dtypes import compute_dtype
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
        """The form of a linear layer with weights of `dtype`. Where only the weights are small (int4) no kernel has to
        quantize the activations first, and such a product begins as a wide one does; its FLOPs are those of fp8."""
        if dtype in ("fp32", "bf16", "fp16"):
            return self.linear, self.linear_error
        if compute_dtype(dtype) != "bf16":
            return self.linear_small, self.linear_small_error
        return self.linear.model_copy(update={"flop_efficiency": self.linear_small.flop_efficiency}
                                      ), self.linear_small_error  # fmt: skip


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

COMPUTE, BANDWIDTH = 0.45 / 0.93, 0.81 / 0.90
"""what AMD's MI300X reaches of its peak against what NVIDIA's GPUs reach of theirs, in the same tests: matrix products
in fp8, bf16 and fp16, and BabelStream ("AMD MI300X GPU Performance Analysis", arXiv 2510.27583, as its summaries quote
it)"""
_UNMEASURED = HeldOutError(median=0.3, p95=1.2)
"""a vendor none of whose kernels was in the fit: half as far again as a GPU left out of it"""


def _slower(form: MatmulForm) -> MatmulForm:
    return form.model_copy(update={"flop_efficiency": COMPUTE * form.flop_efficiency,
                                   "byte_efficiency": BANDWIDTH * form.byte_efficiency})  # fmt: skip


AMD = replace(
    GPU,
    decode=GPU.decode.model_copy(update={"efficiency": BANDWIDTH * GPU.decode.efficiency,
                                         "flop_efficiency": COMPUTE * GPU.decode.flop_efficiency}),
    decode_error=_UNMEASURED,
    prefill=GPU.prefill.model_copy(update={"flop_efficiency": COMPUTE * GPU.prefill.flop_efficiency,
                                           "byte_efficiency": BANDWIDTH * GPU.prefill.byte_efficiency}),
    prefill_error=_UNMEASURED,
    linear=_slower(GPU.linear), linear_error=_UNMEASURED, linear_small=_slower(GPU.linear_small),
    linear_small_error=_UNMEASURED, moe=_slower(GPU.moe), moe_error=_UNMEASURED,
    memory=GPU.memory.model_copy(update={"efficiency": BANDWIDTH * GPU.memory.efficiency}),
)  # fmt: skip

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
    if facts.arch.startswith("gfx"):
        return AMD
    return GPU if facts.arch.startswith("sm_") else CPU
