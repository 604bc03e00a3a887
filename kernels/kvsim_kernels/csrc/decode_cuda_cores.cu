// Decode attention on the CUDA cores: one query token a sequence, split-KV, straight from global memory to registers.
//
// Eight lanes share a token's row, so a warp works on four tokens at once; each lane keeps the queries and outputs of
// its channels. Grid, arguments and results as in decode_tensor_cores.cu.
#include "cache_format.cuh"
#include "softmax.cuh"

constexpr int WARPS = 4, LANES = 8, ROWS = 32 / LANES;
constexpr int PACK = 4;                         // neighbouring channels that one load brings

DEVICE void numbers(float (&out)[PACK], const unsigned char* from, int4_t) {
    const unsigned word = *(const unsigned short*)from;
    #pragma unroll
    for (int i = 0; i < PACK; ++i) out[i] = (float)(word >> 4 * i & 15);
}
template <class S> DEVICE void numbers(float (&out)[PACK], const unsigned char* from, S) {
    Pack<S, PACK> pack;
    pack.load((const S*)from);
    #pragma unroll
    for (int i = 0; i < PACK; ++i) out[i] = to_float(pack.at[i]);
}

template <class T, class S, int D, int HEADS, int GROUP>
__global__ void __launch_bounds__(WARPS * 32, 2)
decode_cuda_cores(T* __restrict__ out, float* __restrict__ part, float* __restrict__ lse, const T* __restrict__ q,
                  const unsigned char* __restrict__ keys, const unsigned char* __restrict__ values,
                  const half_t* __restrict__ scales, const int* __restrict__ table,
                  const int* __restrict__ lengths, int width, int shift, int group, int splits,
                  float scale, float value_scale) {
    constexpr Scaling SCALING = Format<S>::SCALING;
    constexpr int N = D / (LANES * PACK);       // packs a lane has: pack i is channels (i * LANES + column) * PACK on
    constexpr int ROW = ROW_BYTES<S, D>, PACK_BYTES = PACK * Format<S>::BITS / 8, GROUPS = D / GROUP;
    constexpr int ZEROS = SCALING == PER_GROUP ? N : 1;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / LANES, column = lane % LANES;
    const int chunks = gridDim.x / splits, split = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
    const int head = blockIdx.y, seq = blockIdx.z, kv_heads = gridDim.y;
    const int heads = min(HEADS, group - chunk * HEADS);
    const i64 first = ((i64)seq * kv_heads + head) * group + chunk * HEADS;
    const int length = lengths[seq], step = WARPS * ROWS;
    const int share = (length + splits * step - 1) / (splits * step) * step;
    const int begin = split * share, end = min(length, begin + share);

    float x[HEADS][N][PACK], o[HEADS][N][PACK] = {}, m[HEADS], l[HEADS];
    float sums[HEADS][ZEROS], zero[HEADS][ZEROS] = {};   // of the queries' packs, for the keys' zeros; of the values' zeros
    #pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        m[h] = -INF, l[h] = 0;
        #pragma unroll
        for (int i = 0; i < N; ++i) {
            numbers(x[h][i], (const unsigned char*)(q + (first + min(h, heads - 1)) * D + (i * LANES + column) * PACK), T());
            if constexpr (SCALING == PER_GROUP) sums[h][i] = x[h][i][0] + x[h][i][1] + x[h][i][2] + x[h][i][3];
        }
    }

    for (int t0 = begin + warp * ROWS; t0 < end; t0 += step) {      // the whole warp stays in step
        const int token = min(t0 + row, length - 1);
        const i64 at = cache_row(table, width, shift, seq, token) * kv_heads + head;
        float k[N][PACK], v[N][PACK];
        #pragma unroll
        for (int i = 0; i < N; ++i) {
            numbers(k[i], keys + at * ROW + (i * LANES + column) * PACK_BYTES, S());
            numbers(v[i], values + at * ROW + (i * LANES + column) * PACK_BYTES, S());
        }
        // (scale, zero) of the row's group, of keys (which = 0) and values (1)
        auto of_group = [&](int which, int i, int zero) {
            return to_float(scales[((at * 2 + which) * GROUPS + i * LANES * PACK / GROUP) * 2 + zero]);
        };
        #pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            float score = 0;
            #pragma unroll
            for (int i = 0; i < N; ++i) {
                float dot = 0;
                #pragma unroll
                for (int c = 0; c < PACK; ++c) dot += x[h][i][c] * k[i][c];
                if constexpr (SCALING == PER_GROUP) score += of_group(0, i, 0) * dot + of_group(0, i, 1) * sums[h][i];
                else score += dot;
            }
            #pragma unroll
            for (int bit = LANES / 2; bit; bit /= 2) score += __shfl_xor_sync(ALL_LANES, score, bit);
            score *= scale;
            if constexpr (SCALING == PER_TOKEN)
                if (scales) score *= to_float(scales[at * 2]);
            if (t0 + row >= end) score = -INF;
            const float top = fmaxf(m[h], score), correction = weight_of(m[h], top);
            float p = weight_of(score, top);
            m[h] = top, l[h] = l[h] * correction + p;
            if constexpr (SCALING == PER_TOKEN)
                if (scales) p *= to_float(scales[at * 2 + 1]);
            #pragma unroll
            for (int i = 0; i < N; ++i) {
                float weight = p;
                if constexpr (SCALING == PER_GROUP) {
                    weight *= of_group(1, i, 0);
                    zero[h][i] = zero[h][i] * correction + p * of_group(1, i, 1);
                }
                #pragma unroll
                for (int c = 0; c < PACK; ++c) o[h][i][c] = o[h][i][c] * correction + (t0 + row < end ? weight * v[i][c] : 0.f);
            }
        }
    }

    // The warp's four rows, then the warps.
    __shared__ float tops[WARPS][HEADS], weights[WARPS][HEADS], outs[WARPS][HEADS][D];
    #pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        float top = m[h];
        #pragma unroll
        for (int bit = LANES; bit < 32; bit *= 2) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, bit));
        const float correction = weight_of(m[h], top);
        l[h] *= correction;
        #pragma unroll
        for (int bit = LANES; bit < 32; bit *= 2) l[h] += __shfl_xor_sync(ALL_LANES, l[h], bit);
        if (lane == 0) tops[warp][h] = top, weights[warp][h] = l[h];
        #pragma unroll
        for (int i = 0; i < N; ++i)
            #pragma unroll
            for (int c = 0; c < PACK; ++c) {
                float sum = (o[h][i][c] + (SCALING == PER_GROUP ? zero[h][SCALING == PER_GROUP ? i : 0] : 0.f)) * correction;
                #pragma unroll
                for (int bit = LANES; bit < 32; bit *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, bit);
                if (row == 0) outs[warp][h][(i * LANES + column) * PACK + c] = sum;
            }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < heads * D; i += WARPS * 32) {
        const int h = i / D, d = i % D;
        float top = -INF, weight = 0, sum = 0;
        for (int w = 0; w < WARPS; ++w) top = fmaxf(top, tops[w][h]);
        for (int w = 0; w < WARPS; ++w) {
            const float c = weight_of(tops[w][h], top);
            weight += c * weights[w][h], sum += c * outs[w][h][d];
        }
        sum = weight == 0 ? 0.f : sum / weight * value_scale;                   // NaN stays NaN
        if (splits == 1) out[(first + h) * D + d] = from_float<T>(sum);
        else {
            const i64 at = (first + h) * splits + split;
            part[at * D + d] = sum;
            if (d == 0) lse[at] = weight == 0 ? -INF : top + log2_fast(weight);
        }
    }
}
