// The CPU twins of the PTX in ../csrc/device.cuh, by the register layouts that the PTX manual gives.
#pragma once
#define DEVICE inline

inline float to_float(half_t x) {
    const unsigned sign = (x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
    if (magnitude >= 0x7c00) return __builtin_bit_cast(float, sign | 0x7f800000u | (magnitude & 0x3ff) << 13);
    return copysignf(__builtin_bit_cast(float, magnitude << 13) * 0x1p112f, __builtin_bit_cast(float, sign));   // rebiased
}
inline unsigned short half_bits(float x) {      // to nearest, ties to even
    unsigned u = __builtin_bit_cast(unsigned, x);
    const unsigned sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000) return sign | 0x7fff;
    if (u >= 0x477ff000) return sign | 0x7c00;                                  // 65520 and more round to infinity
    if (u < 0x38800000) return sign | (unsigned)nearbyintf(__builtin_bit_cast(float, u) * 0x1p24f);   // subnormal
    u += 0xfff + (u >> 13 & 1);
    return sign | (u - 0x38000000) >> 13;
}
inline unsigned short bf16_bits(float x) {
    unsigned u = __builtin_bit_cast(unsigned, x);
    if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}
inline unsigned pack2(float lo, float hi, half_t) { return half_bits(lo) | (unsigned)half_bits(hi) << 16; }
inline unsigned pack2(float lo, float hi, bf16_t) { return bf16_bits(lo) | (unsigned)bf16_bits(hi) << 16; }
inline float half_of(unsigned word, int i, half_t) { return to_float(half_t{(unsigned short)(word >> 16 * i)}); }
inline float half_of(unsigned word, int i, bf16_t) { return __builtin_bit_cast(float, word >> 16 * i << 16); }
inline unsigned fma_half2(unsigned a, unsigned b, unsigned c) {
    float r[2];                                 // a product of halves is exact in float, and so are the sums used here
    for (int i = 0; i < 2; ++i) r[i] = half_of(a, i, half_t()) * half_of(b, i, half_t()) + half_of(c, i, half_t());
    return pack2(r[0], r[1], half_t());
}
inline float exp2_fast(float x) { const float y = exp2f(x); return y < 0x1p-126f ? 0.f : y; }
inline float log2_fast(float x) { return log2f(x); }
inline unsigned pick_bytes(unsigned a, unsigned b, unsigned selector) {
    const uint64_t all = (uint64_t)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; ++i) r |= (unsigned)(all >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}
inline unsigned fp8x2_to_half2(unsigned x) {
    auto one = [](unsigned b) -> unsigned {
        const unsigned sign = (b & 0x80) << 8;
        if ((b & 0x7f) == 0x7f) return sign | 0x7fff;
        const float magnitude = (b >> 3 & 15) ? ldexpf(8.f + (b & 7), (int)(b >> 3 & 15) - 10) : (b & 7) * 0x1p-9f;
        return sign | half_bits(magnitude);
    };
    return one(x & 0xff) | one(x >> 8 & 0xff) << 16;
}

template <class T> void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], T, HOST_LINE) {
    struct Registers { float a[8], b[4]; } mine;
    for (int i = 0; i < 8; ++i) mine.a[i] = half_of(a[i / 2], i % 2, T());
    for (int i = 0; i < 4; ++i) mine.b[i] = half_of(b[i / 2], i % 2, T());
    auto all = host::exchange(ALL_LANES, mine, "mma", line);
    const int l = host::lane();
    for (int q = 0; q < 4; ++q) {               // four lanes hold a row of a, four a column of b
        const Registers x = all[l / 4 * 4 + q];
        for (int n = 0; n < 2; ++n) {
            const Registers y = all[(l % 4 * 2 + n) * 4 + q];
            for (int h = 0; h < 2; ++h)         // rows l / 4 and l / 4 + 8
                for (int k = 0; k < 4; ++k) d[h * 2 + n] += x.a[h * 2 + k / 2 * 4 + k % 2] * y.b[k];
        }
    }
}
template <int N> void ldmatrix(unsigned (&r)[N], const void* row, HOST_LINE) {
    auto rows = host::exchange(ALL_LANES, (const unsigned*)row, "ldmatrix", line);
    for (int i = 0; i < N; ++i) r[i] = rows[i * 8 + host::lane() / 4][host::lane() % 4];
}
template <int N> void ldmatrix_trans(unsigned (&r)[N], const void* row, HOST_LINE) {
    auto rows = host::exchange(ALL_LANES, (const unsigned short*)row, "ldmatrix_trans", line);
    const int l = host::lane();
    for (int i = 0; i < N; ++i) r[i] = rows[i * 8 + l % 4 * 2][l / 4] | (unsigned)rows[i * 8 + l % 4 * 2 + 1][l / 4] << 16;
}

template <int BYTES> void copy_async(void* to, const void* from, bool valid) { host::queue_copy(to, from, BYTES, valid); }
inline void copy_commit() { host::close_copies(); }
template <size_t PENDING> void copy_wait() { host::wait_copies(PENDING); }
inline void* shared_memory() { return host::shared(); }
