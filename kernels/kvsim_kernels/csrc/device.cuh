// What the kernels ask of the machine: 16-bit and 8-bit number formats, vector loads, asynchronous copies,
// tensor cores. Each PTX instruction is wrapped here once; ../host/device_host.h gives the CPU twin of each.
// No CUDA header is needed: neither NVRTC nor g++ includes any.
#pragma once

using i64 = long long;                          // every offset into a tensor: 2^31 elements are only 4 GB of bf16
struct half_t { unsigned short bits; };         // IEEE binary16
struct bf16_t { unsigned short bits; };         // bfloat16
struct fp8_t { unsigned char bits; };           // e4m3: 4 exponent bits (bias 7), 3 mantissa bits, no infinity, 0x7f is NaN
struct int4_t { unsigned char bits; };          // two numbers of 0 to 15, the first in the low half

constexpr float INF = __builtin_bit_cast(float, 0x7f800000);     // NVRTC has no INFINITY
constexpr float LOG2E = 1.4426950408889634f;
constexpr unsigned ALL_LANES = 0xffffffffu;

#ifdef __CUDACC__
#define DEVICE __device__ __forceinline__

DEVICE float to_float(half_t x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
DEVICE unsigned short half_bits(float x) { unsigned short y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
DEVICE unsigned short bf16_bits(float x) { unsigned short y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }

// Two floats rounded to 16 bits each and packed, `lo` in the low half: what mma takes.
DEVICE unsigned pack2(float lo, float hi, half_t) {
    unsigned y; asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo)); return y;
}
DEVICE unsigned pack2(float lo, float hi, bf16_t) {
    unsigned y; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo)); return y;
}
// a * b + c on two packed halves.
DEVICE unsigned fma_half2(unsigned a, unsigned b, unsigned c) {
    unsigned d; asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c)); return d;
}
// 2^x and log2(x), within 2 ulp; 2^-inf = 0. Results below 2^-126 are flushed to 0.
DEVICE float exp2_fast(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float log2_fast(float x) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
// Byte i of the result is byte (selector's nibble i) of {b, a}: 0-3 name a's bytes, 4-7 b's.
DEVICE unsigned pick_bytes(unsigned a, unsigned b, unsigned selector) {
    unsigned d; asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(selector)); return d;
}

// d[16x8] += a[16x16] b[16x8], fp32 accumulation (mma.m16n8k16). With g = lane / 4 and t = lane % 4:
//   a: {(g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)}   (row, column) of the low half; the high half is one column on
//   b: {(2t, g), (2t + 8, g)}                                 (row, column); the high half is one row on
//   d: {(g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)}
DEVICE void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], bf16_t) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
DEVICE void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], half_t) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four (two) 8x8 matrices of 16-bit elements from shared memory. Lane l gives the address of row l % 8 of matrix l / 8;
// it gets, of each matrix, the elements (l / 4, 2 (l % 4)) and one column on; transposed, (2 (l % 4), l / 4) and one row on.
DEVICE unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
DEVICE void ldmatrix(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void ldmatrix(unsigned (&r)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
        : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}
DEVICE void ldmatrix_trans(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void ldmatrix_trans(unsigned (&r)[2], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
        : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}

// BYTES (4, 8 or 16, both ends aligned to it) from global to shared memory in the background; zeros where !valid,
// and then `from` is not read. Copies join a group at copy_commit; copy_wait<N> waits until at most the N last
// groups are under way. The copies are then visible to the lane that issued them: others need a barrier.
template <int BYTES> DEVICE void copy_async(void* to, const void* from, bool valid) {
    if constexpr (BYTES == 16)                  // past L1: a stream is read once
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
            :: "r"(shared_address(to)), "l"(from), "r"(valid ? 16 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
            :: "r"(shared_address(to)), "l"(from), "n"(BYTES), "r"(valid ? BYTES : 0) : "memory");
}
DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING> DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }

// The dynamic shared memory of the launch, aligned to 16 bytes.
DEVICE void* shared_memory() { extern __shared__ uint4 dynamic_shared[]; return dynamic_shared; }

#if __CUDA_ARCH__ >= 890
// Two fp8 numbers (the low 16 bits of x) as two packed halves; exact.
DEVICE unsigned fp8x2_to_half2(unsigned x) {
    unsigned y; asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"((unsigned short)x)); return y;
}
#endif
#else
#include "../host/device_host.h"
#endif

DEVICE float to_float(bf16_t x) { return __uint_as_float((unsigned)x.bits << 16); }
DEVICE float to_float(signed char x) { return (float)x; }
DEVICE float to_float(float x) { return x; }

template <class T> DEVICE T from_float(float x);
template <> DEVICE half_t from_float<half_t>(float x) { return {half_bits(x)}; }
template <> DEVICE bf16_t from_float<bf16_t>(float x) { return {bf16_bits(x)}; }
template <> DEVICE float from_float<float>(float x) { return x; }

// 2^e, and the e of 2^e <= x < 2^(e + 1) for x >= 0, kept within -126 to 126 so that 2^-e is a number too.
DEVICE float exp2_int(int e) { return __uint_as_float((unsigned)(e + 127) << 23); }
DEVICE int log2_int(float x) { return min(max((int)(__float_as_uint(x) >> 23) - 127, -126), 126); }

// Four fp8 numbers in a word as halves, exactly: out[0] holds bytes 0 and 2, out[1] bytes 1 and 3.
// `by_bits`, for chips without the instruction, moves sign and magnitude into place, which gives the number times 2^-8
// (the exponents' biases differ by 8; subnormals come out right too), and multiplies that out. It reads NaN as 480.
DEVICE void fp8x4_to_half_by_bits(unsigned x, unsigned (&out)[2]) {
    constexpr unsigned TIMES_256 = 0x5c005c00u, MINUS_ZERO = 0x80008000u;
    #pragma unroll
    for (int i = 0; i < 2; ++i) {
        const unsigned top = i == 0 ? x << 8 : x;                               // the bytes in the tops of the halves
        out[i] = fma_half2((top & 0x80008000u) | (top >> 1 & 0x3f803f80u), TIMES_256, MINUS_ZERO);
    }
}
DEVICE void fp8x4_to_half(unsigned x, unsigned (&out)[2]) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
    x = pick_bytes(x, 0, 0x3120);
    out[0] = fp8x2_to_half2(x & 0xffff), out[1] = fp8x2_to_half2(x >> 16);
#else
    fp8x4_to_half_by_bits(x, out);
#endif
}
DEVICE float to_float(fp8_t x) {
    unsigned two[2];
    fp8x4_to_half(x.bits, two);
    return to_float(half_t{(unsigned short)two[0]});
}
// The nearest fp8 number, ties to even, saturated at +-448; NaN stays NaN.
template <> DEVICE fp8_t from_float<fp8_t>(float x) {
    unsigned u = __float_as_uint(x);
    const unsigned sign = u >> 24 & 0x80;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return {0x7f};
    if (u > 0x43e00000u) u = 0x43e00000u;                                       // 448
    if (u < 0x3c800000u)                                                        // below 2^-6: multiples of 2^-9
        return {(unsigned char)(sign | __float2int_rn(__uint_as_float(u) * 512.f))};
    u += 0x7ffff + (u >> 20 & 1);                                               // round to 3 bits of mantissa
    return {(unsigned char)(sign | (u - 0x3c000000u) >> 20)};                   // rebias the exponent by 127 - 7
}

// Four int8 numbers in a word as halves, exactly: out[0] holds bytes 0 and 2, out[1] bytes 1 and 3.
// The half 0x6400 | (x ^ 0x80) is 1024 + (x + 128).
DEVICE void int8x4_to_half(unsigned x, unsigned (&out)[2]) {
    constexpr unsigned ONE = 0x3c003c00u, MINUS_1152 = 0xe480e480u;
    x ^= 0x80808080u;
    out[0] = fma_half2(pick_bytes(x, 0x64646464u, 0x4240), ONE, MINUS_1152);
    out[1] = fma_half2(pick_bytes(x, 0x64646464u, 0x4341), ONE, MINUS_1152);
}
// Eight 4-bit numbers (0 to 15) in a word as halves, out[i] holding nibbles i and i + 4, times 2^-24 (i even) or 2^-20
// (i odd): bits in the place of a half's mantissa, with exponent 0, are a subnormal number as they stand.
DEVICE void int4x8_to_subnormal_half(unsigned x, unsigned (&out)[4]) {
    out[0] = x & 0x000f000fu, out[1] = x & 0x00f000f0u;
    x >>= 8;
    out[2] = x & 0x000f000fu, out[3] = x & 0x00f000f0u;
}

// N consecutive elements moved by one load or store (1 to 16 bytes, aligned to their size).
template <int BYTES> struct Word;
template <> struct Word<16> { using type = uint4; };
template <> struct Word<8> { using type = uint2; };
template <> struct Word<4> { using type = unsigned; };
template <> struct Word<2> { using type = unsigned short; };
template <> struct Word<1> { using type = unsigned char; };
template <class T, int N> union Pack {
    typename Word<N * sizeof(T)>::type word;
    T at[N];
    DEVICE Pack() : word{} {}
    DEVICE void load(const T* p) { word = *reinterpret_cast<const decltype(word)*>(p); }
    DEVICE void store(T* p) const { *reinterpret_cast<decltype(word)*>(p) = word; }
};

// Where chunk c (16 bytes) of row r of a tile with C chunks a row lies, in chunks: chunks are exchanged within groups of
// the largest power of two that divides C, so that the eight rows that ldmatrix reads at once fall into different banks.
// The chunk is c + on; `on` is known when compiling and shares no bit with c, so that little is left to be computed.
template <int C> DEVICE constexpr int swizzled(int r, int c, int on = 0) {
    constexpr int group = (C & -C) < 8 ? (C & -C) : 8;
    return r * C + (c ^ (r / (8 / group) & (group - 1)) ^ (on & 7)) + (on & ~7);
}

// Row of token `token` of sequence `seq` in a cache: through the block table where there is one (2^shift tokens a
// block), else sequences lie `width` rows apart. `width` is also the table's entries a sequence.
DEVICE i64 cache_row(const int* table, int width, int shift, int seq, int token) {
    if (!table) return (i64)seq * width + token;
    return ((i64)table[(i64)seq * width + (token >> shift)] << shift) + (token & ((1 << shift) - 1));
}
