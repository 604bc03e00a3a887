// Decode attention on the tensor cores: one query token a sequence, split-KV.
//
// The HEADS query heads of a chunk share their KV head's keys and values. Scores are mma's d = q k^T (rows: heads,
// columns: 16 tokens), outputs are d = v^T p^T (rows: channels, columns: heads), because a score's registers are then
// an operand as they stand, and eight heads waste no accumulator. Each warp streams tokens of its own through a ring
// of asynchronous copies, so the loop has no block barrier; softmax stays in registers.
#include "cache_format.cuh"
#include "softmax.cuh"

constexpr int TOKENS = 16;                      // that a warp folds at once

// T: queries and output. S: stored numbers. D: head size. HEADS: query heads a block, 8 or 16. GROUP: channels a scale
// of int4 (else D). A block has WARPS warps with STAGES stages each.
//
// Grid (splits x chunks, KV heads, sequences); a chunk is HEADS query heads. out [sequences, heads, D], q alike;
// part [sequences, heads, splits, D] and lse [sequences, heads, splits] (base 2) where there are several splits.
// scale multiplies scores (log2 e included), value_scale the output.
template <class T, class S, int D, int HEADS, int GROUP, int WARPS, int STAGES>
__global__ void __launch_bounds__(WARPS * 32, 2)
decode_tensor_cores(T* __restrict__ out, float* __restrict__ part, float* __restrict__ lse, const T* __restrict__ q,
                    const unsigned char* __restrict__ keys, const unsigned char* __restrict__ values,
                    const unsigned char* __restrict__ scales, const int* __restrict__ table,
                    const int* __restrict__ lengths, int width, int shift, int group, int splits,
                    float scale, float value_scale) {
    using M = typename Format<S>::Math;
    constexpr Scaling SCALING = Format<S>::SCALING;
    constexpr int ROW = ROW_BYTES<S, D>, C = ROW / 16, SCALE = SCALE_BYTES<S, D, GROUP>, GROUPS = D / GROUP;
    constexpr int TILE = TOKENS * (2 * ROW + SCALE), H = HEADS / 8, UNITS = D / 16 / STEPS<S>, OWN = UNITS / GROUPS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int chunks = gridDim.x / splits, split = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
    const int head = blockIdx.y, seq = blockIdx.z, kv_heads = gridDim.y;
    const int heads = min(HEADS, group - chunk * HEADS);                        // query heads of this block
    const i64 first = ((i64)seq * kv_heads + head) * group + chunk * HEADS;     // the first one's row of q and out
    const int length = lengths[seq], step = WARPS * TOKENS;
    const int share = (length + splits * step - 1) / (splits * step) * step;
    const int begin = split * share + warp * TOKENS, end = min(length, split * share + share);

    unsigned char* ring = (unsigned char*)shared_memory() + warp * STAGES * TILE;

    // Start copying 16 tokens' keys, values and scales; four lanes share a row.
    auto fetch = [&](int t0, int stage) {
        if (t0 >= end) return;
        unsigned char* tile = ring + stage * TILE;
        #pragma unroll
        for (int r8 = 0; r8 < TOKENS; r8 += 8) {
            const int r = r8 + g;
            const bool valid = t0 + r < end;
            const i64 row = cache_row(table, width, shift, seq, min(t0 + r, length - 1)) * kv_heads + head;
            const unsigned char *key = keys + row * ROW + t * 16, *value = values + row * ROW + t * 16;
            #pragma unroll
            for (int c = 0; c < C; c += 4)
                if (c + 4 <= C || c + t < C) {
                    const int to = swizzled<C>(r, t, c) * 16;
                    copy_async<16>(tile + to, key + c * 16, valid);
                    copy_async<16>(tile + TOKENS * ROW + to, value + c * 16, valid);
                }
            if constexpr (SCALING != NONE) {
                constexpr int PIECE = SCALE < 8 ? SCALE : 8, PIECES = SCALE / PIECE;
                if (scales) {
                    unsigned char* to = tile + 2 * TOKENS * ROW + r * SCALE + t * PIECE;
                    const unsigned char* from = scales + row * SCALE + t * PIECE;
                    #pragma unroll
                    for (int i = 0; i < PIECES; i += 4)
                        if (i + 4 <= PIECES || i + t < PIECES) copy_async<PIECE>(to + i * PIECE, from + i * PIECE, valid);
                }
            }
        }
    };
    #pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) fetch(begin + s * step, s), copy_commit();

    // The queries as a operands. For a quantized cache they become halves, so each row is divided by a power of two
    // near its maximum (`unit`), which changes no digit; so do the powers of two that `unpack` leaves in the keys.
    unsigned x[D / 16][2][H];
    float unit[H];
    volatile float* group_sums = (volatile float*)((unsigned char*)shared_memory() + WARPS * STAGES * TILE) + warp * HEADS * GROUPS;
    #pragma unroll
    for (int h = 0; h < H; ++h) {
        const T* row = q + (first + min(h * 8 + g, heads - 1)) * D;
        unit[h] = scale / Format<S>::UNPACKED;
        float inverse = 1;
        if constexpr (SCALING != NONE) {
            float top = 0;
            #pragma unroll
            for (int d = t; d < D; d += 4) top = fmaxf(top, fabsf(to_float(row[d])));
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
            unit[h] *= exp2_int(log2_int(top)), inverse = exp2_int(-log2_int(top));
        }
        float sums[GROUPS] = {};                // of the row's groups, for the keys' zeros
        #pragma unroll
        for (int k = 0; k < D / 16; ++k)
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int d = key_channel<S>(k, half, t);
                const float a = to_float(row[d]) * inverse, b = to_float(row[d + KEY_PAIR<S>]) * inverse;
                constexpr float by = 1 / Format<S>::SECOND;
                x[k][half][h] = h * 8 + g >= heads ? 0 : half ? pack2(a * by, b * by, M()) : pack2(a, b, M());
                if constexpr (SCALING == PER_GROUP) sums[k * 16 / GROUP] += (a + b) * Format<S>::UNPACKED;
            }
        if constexpr (SCALING == PER_GROUP) {
            #pragma unroll
            for (int i = 0; i < GROUPS; ++i) {
                sums[i] += __shfl_xor_sync(ALL_LANES, sums[i], 1);
                sums[i] += __shfl_xor_sync(ALL_LANES, sums[i], 2);
                if (t == 0) group_sums[(h * 8 + g) * GROUPS + i] = sums[i];
            }
        }
    }

    float o[D / 16][H][4] = {}, m[H], l[H];     // outputs (channel, head); each row's maximum and sum of weights
    float zero[H][SCALING == PER_GROUP ? GROUPS : 1] = {};                      // what the values' zeros add
    float shrink[SCALING == PER_GROUP ? GROUPS : 1];     // power of two that brings the value scales so far below 2
    #pragma unroll
    for (float& by : shrink) by = exp2_int(126);
    #pragma unroll
    for (int h = 0; h < H; ++h) m[h] = -INF, l[h] = 0;

    int stage = 0;
    for (int t0 = begin; t0 < end; t0 += step, stage = stage + 1 == STAGES ? 0 : stage + 1) {
        fetch(t0 + (STAGES - 1) * step, stage == 0 ? STAGES - 1 : stage - 1);
        copy_commit();
        copy_wait<STAGES - 1>();
        __syncwarp();                           // other lanes' copies
        const unsigned char* tile = ring + stage * TILE;
        // The scale words (two halves) of this lane's tokens: 2t, 2t + 1, 2t + 8, 2t + 9. Volatile, as the groups' sums are:
        // loaded where they are used, or head size 256 in groups of 32 spills.
        auto scale_word = [&](int n, int j, int which) {
            return *(const volatile unsigned*)(tile + 2 * TOKENS * ROW + (n * 8 + t * 2 + j) * SCALE + which * 4);
        };
        auto low = [](unsigned word) { return to_float(half_t{(unsigned short)word}); };
        auto high = [](unsigned word) { return to_float(half_t{(unsigned short)(word >> 16)}); };

        float s[2][4] = {};                     // scores: (row g, tokens 2t and 2t + 1), then row g + 8, of 8 tokens each
        #pragma unroll
        for (int i = 0; i < GROUPS; ++i) {      // one turn unless groups have scales of their own
            float dot[2][4] = {};
            #pragma unroll
            for (int u = i * OWN; u < i * OWN + OWN; ++u) {
                unsigned b[STEPS<S>][2][2];
                load_keys<S, D>(b, tile, u, lane);
                #pragma unroll
                for (int j = 0; j < STEPS<S>; ++j) {
                    const int k = u * STEPS<S> + j;
                    const unsigned a[4] = {x[k][0][0], H == 2 ? x[k][0][H - 1] : 0, x[k][1][0], H == 2 ? x[k][1][H - 1] : 0};
                    mma(dot[0], a, b[j][0], M()), mma(dot[1], a, b[j][1], M());
                }
            }
            #pragma unroll
            for (int n = 0; n < 2; ++n)
                #pragma unroll
                for (int e = 0; e < 2 * H; ++e)
                    if constexpr (SCALING == PER_GROUP) {
                        const unsigned word = scale_word(n, e % 2, i);
                        s[n][e] += low(word) * dot[n][e] + high(word) * group_sums[(e / 2 * 8 + g) * GROUPS + i];
                    } else {
                        s[n][e] = dot[n][e];
                    }
        }
        float correction[H];
        #pragma unroll
        for (int h = 0; h < H; ++h) {
            float top = m[h];
            #pragma unroll
            for (int n = 0; n < 2; ++n)
                #pragma unroll
                for (int j = 0; j < 2; ++j) {
                    float& at = s[n][2 * h + j];
                    at *= unit[h];
                    if constexpr (SCALING == PER_TOKEN)
                        if (scales) at *= low(scale_word(n, j, 0));
                    if (t0 + n * 8 + t * 2 + j >= end) at = -INF;
                    top = fmaxf(top, at);
                }
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));               // the four lanes of a row agree
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
            correction[h] = weight_of(m[h], top);
            m[h] = top, l[h] *= correction[h];
            #pragma unroll
            for (int n = 0; n < 2; ++n)
                #pragma unroll
                for (int j = 0; j < 2; ++j) l[h] += s[n][2 * h + j] = weight_of(s[n][2 * h + j], top);
        }
        bool grown = false;                     // a maximum: then the outputs so far shrink, which is rare
        #pragma unroll
        for (int h = 0; h < H; ++h) grown |= correction[h] != 1;
        if (__any_sync(ALL_LANES, grown)) {
            #pragma unroll
            for (int h = 0; h < H; ++h)
                #pragma unroll
                for (int j = 0; j < 2; ++j) {   // this lane has outputs of heads 2t and 2t + 1
                    const float by = __shfl_sync(ALL_LANES, correction[h], (t * 2 + j) * 4);
                    #pragma unroll
                    for (int n = 0; n < D / 16; ++n) o[n][h][j] *= by, o[n][h][j + 2] *= by;
                }
        }

        #pragma unroll
        for (int i = 0; i < GROUPS; ++i) {
            // Value scales go onto the weights, shrunk so that halves hold them.
            float factor[2][2];
            #pragma unroll
            for (int n = 0; n < 2; ++n)
                #pragma unroll
                for (int j = 0; j < 2; ++j) factor[n][j] = 1;
            if constexpr (SCALING != NONE)
                if (SCALING == PER_GROUP || scales) {
                    float top = 0;
                    #pragma unroll
                    for (int n = 0; n < 2; ++n)
                        #pragma unroll
                        for (int j = 0; j < 2; ++j) {
                            const unsigned word = scale_word(n, j, SCALING == PER_GROUP ? GROUPS + i : 0);
                            factor[n][j] = SCALING == PER_GROUP ? low(word) : high(word);
                            top = fmaxf(top, factor[n][j]);
                            if constexpr (SCALING == PER_GROUP) {
                                #pragma unroll
                                for (int h = 0; h < H; ++h) {
                                    if (n + j == 0) zero[h][i] *= correction[h];
                                    zero[h][i] += s[n][2 * h + j] * high(word);
                                }
                            }
                        }
                    if (__any_sync(ALL_LANES, top * shrink[i] >= 2)) {          // rare
                        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
                        top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
                        const float by = exp2_int(-log2_int(top)) * exp2_int(-log2_int(shrink[i]));
                        shrink[i] = exp2_int(-log2_int(top));
                        #pragma unroll
                        for (int n = i * OWN * STEPS<S>; n < (i + 1) * OWN * STEPS<S>; ++n)
                            #pragma unroll
                            for (int h = 0; h < H; ++h)
                                #pragma unroll
                                for (int e = 0; e < 4; ++e) o[n][h][e] *= by;
                    }
                    #pragma unroll
                    for (int n = 0; n < 2; ++n)
                        #pragma unroll
                        for (int j = 0; j < 2; ++j) factor[n][j] *= shrink[i];
                }
            unsigned p[H][2];                   // weights as b operands: rows tokens, columns heads
            #pragma unroll
            for (int h = 0; h < H; ++h)
                #pragma unroll
                for (int n = 0; n < 2; ++n)
                    p[h][n] = pack2(s[n][2 * h] * factor[n][0], s[n][2 * h + 1] * factor[n][1], M());
            #pragma unroll
            for (int u = i * OWN; u < i * OWN + OWN; ++u) {
                unsigned a[STEPS<S>][4];
                load_values<S, D>(a, tile + TOKENS * ROW, u, lane);
                #pragma unroll
                for (int j = 0; j < STEPS<S>; ++j)
                    #pragma unroll
                    for (int h = 0; h < H; ++h) mma(o[u * STEPS<S> + j][h], a[j], p[h], M());
            }
        }
        __syncwarp();                           // the stage may be overwritten from here on
    }
    copy_wait<0>();

    // The warps' partial results meet in shared memory, where the rings were.
    __syncthreads();
    float* tops = (float*)shared_memory();      // [WARPS][HEADS], then the sums, the zeros' shares and [WARPS][HEADS][D]
    float *weights = tops + WARPS * HEADS, *zeros = weights + WARPS * HEADS, *outs = zeros + WARPS * HEADS * GROUPS;
    #pragma unroll
    for (int h = 0; h < H; ++h) {
        l[h] += __shfl_xor_sync(ALL_LANES, l[h], 1);
        l[h] += __shfl_xor_sync(ALL_LANES, l[h], 2);
        const int r = warp * HEADS + h * 8 + g;
        if (t == 0) tops[r] = m[h], weights[r] = l[h];
        if constexpr (SCALING == PER_GROUP) {
            #pragma unroll
            for (int i = 0; i < GROUPS; ++i) {
                zero[h][i] += __shfl_xor_sync(ALL_LANES, zero[h][i], 1);
                zero[h][i] += __shfl_xor_sync(ALL_LANES, zero[h][i], 2);
                if (t == 0) zeros[r * GROUPS + i] = zero[h][i];
            }
        }
        #pragma unroll
        for (int n = 0; n < D / 16; ++n)
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                float by = (e / 2 ? 1 / Format<S>::SECOND : 1) / Format<S>::UNPACKED;
                if (SCALING == PER_GROUP || (SCALING == PER_TOKEN && scales))
                    by *= exp2_int(-log2_int(shrink[SCALING == PER_GROUP ? n * 16 / GROUP : 0]));
                outs[(warp * HEADS + h * 8 + t * 2 + e % 2) * D + value_channel<S>(n, e / 2, g)] = o[n][h][e] * by;
            }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < heads * D; i += WARPS * 32) {
        const int h = i / D, d = i % D;
        float top = -INF, weight = 0, sum = 0;
        for (int w = 0; w < WARPS; ++w) top = fmaxf(top, tops[w * HEADS + h]);
        for (int w = 0; w < WARPS; ++w) {
            const int r = w * HEADS + h;
            const float c = weight_of(tops[r], top);
            weight += c * weights[r];
            sum += c * (outs[r * D + d] + (SCALING == PER_GROUP ? zeros[r * GROUPS + d / GROUP] : 0.f));
        }
        store_split(out, part, lse, first + h, D, d, split, splits, top, weight, sum * value_scale);
    }
}
