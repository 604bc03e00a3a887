// How each number format of the KV cache is stored, scaled and handed to the tensor cores (../caches.py has the table).
//
// A row (one token and KV head) is C chunks of 16 bytes. mma wants 16-bit operands in fixed places; which channel of
// the head comes where is free as long as keys and queries (values and outputs) agree. So narrow formats are unpacked
// in registers in the order that costs least, and `key_channel` and `value_channel` say which channel that is.
#pragma once
#include "device.cuh"

enum Scaling { NONE, PER_TOKEN, PER_GROUP };    // of a row: none; one scale; a scale and a zero for each group of channels

// UNPACKED: `unpack` below gives the stored numbers times this; SECOND: those of odd out[i] times this on top. Powers of
// two, which the kernel takes out again.
template <int BITS_, Scaling SCALING_, class Math_> struct FormatOf {
    static constexpr int BITS = BITS_;
    static constexpr Scaling SCALING = SCALING_;
    using Math = Math_;                         // what the tensor cores multiply
    static constexpr float UNPACKED = 1, SECOND = 1;
};
template <class S> struct Format;
template <> struct Format<bf16_t> : FormatOf<16, NONE, bf16_t> {};
template <> struct Format<half_t> : FormatOf<16, NONE, half_t> {};
template <> struct Format<fp8_t> : FormatOf<8, PER_TOKEN, half_t> {};
template <> struct Format<signed char> : FormatOf<8, PER_TOKEN, half_t> {};
template <> struct Format<int4_t> : FormatOf<4, PER_GROUP, half_t> {
    static constexpr float UNPACKED = 1.f / (1 << 24), SECOND = 16;
};

// A row's bytes, and those of its scales (key's and value's) in a tensor of scales. GROUP: channels a group.
template <class S, int D> constexpr int ROW_BYTES = D * Format<S>::BITS / 8;
template <class S, int D, int GROUP> constexpr int SCALE_BYTES =
    Format<S>::SCALING == NONE ? 0 : Format<S>::SCALING == PER_TOKEN ? 4 : D / GROUP * 8;

// A word of four fp8 or int8, or of eight int4, as packed halves.
DEVICE void unpack(unsigned word, unsigned (&out)[2], fp8_t) { fp8x4_to_half(word, out); }
DEVICE void unpack(unsigned word, unsigned (&out)[2], signed char) { int8x4_to_half(word, out); }
DEVICE void unpack(unsigned word, unsigned (&out)[4], int4_t) { int4x8_to_subnormal_half(word, out); }

// The channel of a key in the low half of mma's b[half], lane t = lane % 4, step k of 16 channels; the high half is
// `KEY_PAIR` channels on.
template <class S> constexpr int KEY_PAIR = Format<S>::BITS == 16 ? 1 : Format<S>::BITS == 8 ? 2 : 4;
template <class S> DEVICE constexpr int key_channel(int k, int half, int t) {
    if constexpr (Format<S>::BITS == 16) return k * 16 + half * 8 + t * 2;
    else if constexpr (Format<S>::BITS == 8) return k * 16 + t * 4 + half;
    else return k / 2 * 32 + t * 8 + k % 2 * 2 + half;
}
// The channel of a value in row g = lane / 4 (+ 8 if half) of tile n of 16 channels.
template <class S> DEVICE constexpr int value_channel(int n, int half, int g) {
    if constexpr (Format<S>::BITS == 16) return n * 16 + half * 8 + g;
    else if constexpr (Format<S>::BITS == 8) return n * 16 + g * 2 + half;
    else return n / 2 * 32 + g * 4 + n % 2 * 2 + half;
}

// Operands are loaded by units: what one ldmatrix brings of 16 tokens, STEPS steps of 16 channels.
template <class S> constexpr int STEPS = Format<S>::BITS == 4 ? 2 : 1;

// Keys as mma's b operands: b[step][0] of the first eight tokens, b[step][1] of the others.
template <class S, int D> DEVICE void load_keys(unsigned (&b)[STEPS<S>][2][2], const unsigned char* tile, int unit, int lane) {
    constexpr int C = ROW_BYTES<S, D> / 16;
    if constexpr (Format<S>::BITS == 16) {
        unsigned r[4];
        ldmatrix(r, tile + swizzled<C>(lane % 8 + lane / 16 * 8, lane / 8 % 2, unit * 2) * 16);
        b[0][0][0] = r[0], b[0][0][1] = r[1], b[0][1][0] = r[2], b[0][1][1] = r[3];
    } else {
        unsigned r[2];
        ldmatrix(r, tile + swizzled<C>(lane % 16, 0, unit) * 16);
        #pragma unroll
        for (int n = 0; n < 2; ++n) {
            unsigned x[STEPS<S> * 2];
            unpack(r[n], x, S());
            #pragma unroll
            for (int i = 0; i < STEPS<S>; ++i) b[i][n][0] = x[i * 2], b[i][n][1] = x[i * 2 + 1];
        }
    }
}

// Values, transposed, as mma's a operands: rows are channels, columns the 16 tokens.
template <class S, int D> DEVICE void load_values(unsigned (&a)[STEPS<S>][4], const unsigned char* tile, int unit, int lane) {
    constexpr int C = ROW_BYTES<S, D> / 16;
    if constexpr (Format<S>::BITS == 16) {
        ldmatrix_trans(a[0], tile + swizzled<C>(lane % 8 + lane / 16 * 8, lane / 8 % 2, unit * 2) * 16);
    } else {
        unsigned r[2];
        ldmatrix_trans(r, tile + swizzled<C>(lane % 16, 0, unit) * 16);
        #pragma unroll
        for (int n = 0; n < 2; ++n) {
            unsigned x[STEPS<S> * 2];
            unpack(r[n], x, S());
            #pragma unroll
            for (int i = 0; i < STEPS<S>; ++i) a[i][n * 2] = x[i * 2], a[i][n * 2 + 1] = x[i * 2 + 1];
        }
    }
}
