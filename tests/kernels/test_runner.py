"""The CPU twins of device.cuh: number formats bit for bit, tensor cores against NumPy, copies, barriers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from kvsim_kernels.build import CSRC
from kvsim_kernels.launch import Kernel

CPU = torch.device("cpu")

FORMATS = """
template <class T> __global__ void widen(float* out, const T* in) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    out[i] = to_float(in[i]);
}
template <class T> __global__ void narrow(T* out, const float* in) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    out[i] = from_float<T>(in[i]);
}
__global__ void unpack(unsigned* fp8, unsigned* by_bits, unsigned* int8, unsigned* int4, const unsigned* in) {
    const int i = blockIdx.x * 32 + threadIdx.x;
    fp8x4_to_half(in[i], reinterpret_cast<unsigned(&)[2]>(fp8[i * 2]));
    fp8x4_to_half_by_bits(in[i], reinterpret_cast<unsigned(&)[2]>(by_bits[i * 2]));
    int8x4_to_half(in[i], reinterpret_cast<unsigned(&)[2]>(int8[i * 2]));
    int4x8_to_subnormal_half(in[i], reinterpret_cast<unsigned(&)[4]>(int4[i * 4]));
}
"""
TENSOR = """
template <class T> __global__ void product(float* d, const T* a, const T* b) {      // d[16x8] = a[16x16] b[8x16]^T
    T* tile = (T*)shared_memory();                                                  // a, then b, in rows of 32 bytes
    for (int i = threadIdx.x; i < 24 * 2; i += 32)
        copy_async<16>(tile + i * 8, (i < 32 ? a : b - 256) + i * 8, true);
    copy_commit();
    copy_wait<0>();
    __syncwarp();
    const int l = threadIdx.x;
    unsigned x[4], y[2];
    ldmatrix(x, tile + l % 16 * 16 + l / 16 * 8);
    ldmatrix(y, tile + 256 + l % 8 * 16 + l / 8 % 2 * 8);
    float sum[4] = {};
    mma(sum, x, y, T());
    for (int i = 0; i < 4; ++i) d[(l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2] = sum[i];
}
template <class T> __global__ void product_trans(float* d, const T* a, const T* b) { // d[16x8] = a[16x16]^T b[16x8]
    T* tile = (T*)shared_memory();
    for (int i = threadIdx.x; i < 48; i += 32)
        copy_async<16>(tile + i * 8, (i < 32 ? a : b - 256) + i * 8, true);
    copy_commit();
    copy_wait<0>();
    __syncwarp();
    const int l = threadIdx.x;
    unsigned x[4], y[2];
    ldmatrix_trans(x, tile + (l % 8 + l / 16 * 8) * 16 + l / 8 % 2 * 8);
    ldmatrix_trans(y, tile + 256 + l % 16 * 8);
    float sum[4] = {};
    mma(sum, x, y, T());
    for (int i = 0; i < 4; ++i) d[(l / 4 + i / 2 * 8) * 8 + l % 4 * 2 + i % 2] = sum[i];
}
"""
WARPS = """
__global__ void collectives(int* out) {
    const int l = threadIdx.x;
    out[l] = __shfl_sync(ALL_LANES, l, 31 - l);
    out[32 + l] = __shfl_xor_sync(ALL_LANES, l, 5);
    out[64 + l] = __shfl_down_sync(ALL_LANES, l, 3);
    out[96 + l] = __shfl_up_sync(ALL_LANES, l, 3);
    out[128 + l] = (int)__ballot_sync(ALL_LANES, l % 3 == 0);
    out[160 + l] = l < 8 ? __shfl_xor_sync(0xffu, l, 1) : -1;
    out[192 + l] = __any_sync(ALL_LANES, l == 7) + 2 * __all_sync(ALL_LANES, l < 31);
}
__global__ void reversed(int* out, const int* in, int n) {         // through shared memory, over a block of 96
    int* all = (int*)shared_memory();
    all[threadIdx.x] = (int)threadIdx.x < n ? in[threadIdx.x] : 0;
    __syncthreads();
    if ((int)threadIdx.x < n) out[threadIdx.x] = all[n - 1 - threadIdx.x];
}
__global__ void zero_filled(unsigned* out, const unsigned* in) {   // the copies of the upper lanes are not valid
    unsigned* all = (unsigned*)shared_memory();
    copy_async<4>(all + threadIdx.x, in + threadIdx.x, threadIdx.x < 16);
    copy_commit();
    out[threadIdx.x] = all[threadIdx.x];                            // too early: garbage
    copy_wait<0>();
    out[32 + threadIdx.x] = all[threadIdx.x];
}
"""


@pytest.fixture
def kernel(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A kernel of a source given as text."""

    def make(text: str, expression: str, threads: int = 32, shared: int = 0) -> Kernel:
        file = tmp_path / "test.cu"
        file.write_text(f'#include "{CSRC}/device.cuh"\n{text}')
        return Kernel(str(file), expression, threads, shared)

    return make


def every_16_bits() -> torch.Tensor:
    return torch.arange(65536).to(torch.uint16)


@pytest.mark.parametrize(("cpp", "dtype"), [("half_t", torch.float16), ("bf16_t", torch.bfloat16)])
def test_16_bit_numbers_are_torchs(kernel, cpp: str, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    bits = every_16_bits()
    wide = torch.empty(65536)
    kernel(FORMATS, f"widen<{cpp}>").launch((2048,), wide, bits, device=CPU)
    want = bits.view(dtype).float()
    assert torch.equal(wide.nan_to_num(nan=1.5), want.nan_to_num(nan=1.5))
    draw = torch.Generator().manual_seed(0)
    between = wide + torch.rand(65536, generator=draw) * 2**-9 * wide       # and what must be rounded
    halves = want[torch.isfinite(want)]
    ties = (halves[:-1] + halves[1:]) / 2
    edges = [1e-40, -1e-40, 65519.9, 65520.0, 3e38, float("inf"), -float("inf")]
    given = torch.cat([between, ties, torch.tensor(edges)])
    given = given[: given.numel() // 32 * 32]
    narrow = torch.empty(given.numel(), dtype=dtype)
    kernel(FORMATS, f"narrow<{cpp}>").launch((given.numel() // 32,), narrow, given, device=CPU)
    real = ~given.isnan()
    assert torch.equal(narrow[real].view(torch.int16), given[real].to(dtype).view(torch.int16))
    assert narrow[~real].isnan().all()


def test_fp8_numbers_are_torchs(kernel) -> None:  # type: ignore[no-untyped-def]
    codes = torch.arange(256).to(torch.uint8)
    wide = torch.empty(256)
    kernel(FORMATS, "widen<fp8_t>").launch((8,), wide, codes, device=CPU)
    want = codes.view(torch.float8_e4m3fn).float()
    assert torch.equal(wide.nan_to_num(nan=500.0), want.nan_to_num(nan=500.0))
    ordered = want[:127]
    given = torch.cat([ordered, (ordered[:-1] + ordered[1:]) / 2, torch.tensor([1e-9, 447.0])])
    given = torch.cat([given, -given])[: 254 // 32 * 64]
    narrow = torch.empty(given.numel(), dtype=torch.float8_e4m3fn)
    kernel(FORMATS, "narrow<fp8_t>").launch((given.numel() // 32,), narrow, given, device=CPU)
    assert torch.equal(narrow.view(torch.uint8), given.to(torch.float8_e4m3fn).view(torch.uint8))
    large = torch.tensor([449.0, 1e30, float("inf"), -float("inf")] * 8)    # saturates, where torch gives NaN
    kernel(FORMATS, "narrow<fp8_t>").launch((1,), narrow, large, device=CPU)
    assert narrow[:4].float().tolist() == [448, 448, 448, -448]


def test_narrow_numbers_are_unpacked_exactly(kernel) -> None:  # type: ignore[no-untyped-def]
    """Bytes 0 and 2, then 1 and 3 (nibbles i and i + 4 of int4), as halves; with the instruction and without."""
    code = np.arange(256, dtype=np.uint8)
    given = np.stack([code, 255 - code, np.roll(code, 7), code ^ 0x5A], axis=1)
    fp8, by_bits, int8 = (torch.empty(256, 4, dtype=torch.float16) for _ in range(3))
    int4 = torch.empty(256, 8, dtype=torch.float16)
    kernel(FORMATS, "unpack").launch((8,), fp8, by_bits, int8, int4, torch.from_numpy(given), device=CPU)
    order = given[:, [0, 2, 1, 3]]
    assert np.array_equal(int8.numpy(), order.view(np.int8))
    want = torch.from_numpy(order.copy()).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(fp8.float().numpy(), want, equal_nan=True)
    number = ~np.isnan(want)
    assert np.array_equal(by_bits.float().numpy()[number], want[number])
    nibbles = np.stack([given & 15, given >> 4], axis=2).reshape(256, 8)
    shift = np.array([24, 24, 20, 20] * 2)                  # odd pairs lie four bits higher
    assert np.array_equal(int4.numpy(), nibbles[:, [0, 4, 1, 5, 2, 6, 3, 7]] * 2.0**-shift)


@pytest.mark.parametrize(("cpp", "dtype"), [("half_t", torch.float16), ("bf16_t", torch.bfloat16)])
def test_tensor_cores_multiply_matrices(kernel, cpp: str, dtype: torch.dtype) -> None:  # type: ignore[no-untyped-def]
    draw = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-8, 9, shape, generator=draw).to(dtype) for shape in ((16, 16), (8, 16)))
    d = torch.empty(16, 8)
    kernel(TENSOR, f"product<{cpp}>", shared=768).launch((1,), d, a, b, device=CPU)
    assert torch.equal(d, a.float() @ b.float().T)
    bt = b.T.contiguous()
    kernel(TENSOR, f"product_trans<{cpp}>", shared=768).launch((1,), d, a, bt, device=CPU)
    assert torch.equal(d, a.float().T @ bt.float())


def test_warp_collectives(kernel) -> None:  # type: ignore[no-untyped-def]
    out = torch.empty(7, 32, dtype=torch.int32)
    kernel(WARPS, "collectives").launch((1,), out, device=CPU)
    lane = np.arange(32)
    want = [
        31 - lane,
        lane ^ 5,
        np.where(lane + 3 < 32, lane + 3, lane),
        np.where(lane >= 3, lane - 3, lane),
        np.full(32, sum(1 << i for i in range(0, 32, 3))),
        np.where(lane < 8, lane ^ 1, -1),
        np.full(32, 1),
    ]
    assert np.array_equal(out.numpy(), np.stack(want))


@pytest.mark.parametrize("threads", [96, 33])
def test_blocks_share_memory(kernel, threads: int) -> None:  # type: ignore[no-untyped-def]
    values = torch.arange(threads, dtype=torch.int32)
    out = torch.empty_like(values)
    kernel(WARPS, "reversed", threads, 4 * threads).launch((1,), out, values, threads, device=CPU)
    assert torch.equal(out, values.flip(0))


def test_an_asynchronous_copy_arrives_when_it_is_waited_for(kernel) -> None:  # type: ignore[no-untyped-def]
    values = torch.arange(32, dtype=torch.int32)
    out = torch.empty(2, 32, dtype=torch.int32)
    kernel(WARPS, "zero_filled", shared=128).launch((1,), out, values, device=CPU)
    assert torch.equal(out[0], torch.full((32,), -1, dtype=torch.int32))
    assert torch.equal(out[1], torch.where(values < 16, values, 0))


def test_more_shared_memory_than_any_chip_has_is_refused(kernel) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match="300000 bytes of shared memory are more than any chip has"):
        kernel(WARPS, "collectives", shared=300_000).launch((1,), torch.empty(224, dtype=torch.int32), device=CPU)


def test_arguments_that_a_kernel_cannot_take_are_refused(kernel) -> None:  # type: ignore[no-untyped-def]
    one = kernel(WARPS, "reversed", 32, 128)
    values = torch.empty(32, dtype=torch.int32)
    with pytest.raises(OverflowError, match="2147483648 does not fit a 32-bit int"):
        one.launch((1,), values, values, 2**31, device=CPU)
    with pytest.raises(ValueError, match="a tensor on meta is passed to a kernel on cpu"):
        one.launch((1,), values.to("meta"), values, 3, device=CPU)
    with pytest.raises(ValueError, match="kernels run on cuda and cpu devices, not on meta"):
        one.launch((1,), values.to("meta"), values.to("meta"), 3, device=torch.device("meta"))
    with pytest.raises(ValueError, match="a grid of 1 x 70000 x 1 blocks"):
        one.launch((1, 70_000), values, values, 3, device=CPU)
    one.launch((0,), values, values, 3, device=CPU)


def test_a_kernel_that_does_not_compile_says_why(kernel) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RuntimeError, match="nonsense"):
        kernel("__global__ void broken() { nonsense; }", "broken").launch((1,), device=CPU)
