// Decode attention on the CUDA cores: one query token a sequence, split-KV, straight from global memory to registers.
//
// Eight lanes share a token's row, so a warp works on four tokens at once; each lane keeps the queries and outputs of
// its channels. The rung below decode_tensor_cores.cu: same grid and results, 16-bit caches only.
#include "softmax.cuh"

constexpr int WARPS = 4, LANES = 8, ROWS = 32 / LANES;
constexpr int PACK = 4;                         // neighbouring channels that one load brings

template <class T> DEVICE void load(float (&out)[PACK], const T* from) {
    Pack<T, PACK> pack;
    pack.load(from);
    #pragma unroll
    for (int i = 0; i < PACK; ++i) out[i] = to_float(pack.at[i]);
}

// T: queries, cache and output. D: head size. HEADS: query heads a block.
//
// Grid (splits x chunks, KV heads, sequences); a chunk is HEADS of the `group` query heads that share a KV head.
// q and out [sequences, heads, D]; part [sequences, heads, splits, D] and lse [sequences, heads, splits] (base 2) where
// there are several splits. scale multiplies scores (log2 e included). For table, width and shift see cache_row.
template <class T, int D, int HEADS>
__global__ void __launch_bounds__(WARPS * 32, 2)
decode_cuda_cores(T* __restrict__ out, float* __restrict__ part, float* __restrict__ lse, const T* __restrict__ q,
                  const T* __restrict__ keys, const T* __restrict__ values, const int* __restrict__ table,
                  const int* __restrict__ lengths, int width, int shift, int group, int splits, float scale) {
    constexpr int N = D / (LANES * PACK);       // packs a lane has: pack i is channels (i * LANES + column) * PACK on
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / LANES, column = lane % LANES;
    const int chunks = gridDim.x / splits, split = blockIdx.x / chunks, chunk = blockIdx.x % chunks;
    const int head = blockIdx.y, seq = blockIdx.z, kv_heads = gridDim.y;
    const int heads = min(HEADS, group - chunk * HEADS);                        // query heads of this block
    const i64 first = ((i64)seq * kv_heads + head) * group + chunk * HEADS;     // the first one's row of q and out
    const int length = lengths[seq], step = WARPS * ROWS;
    const int share = (length + splits * step - 1) / (splits * step) * step;
    const int begin = split * share, end = min(length, begin + share);

    float x[HEADS][N][PACK], o[HEADS][N][PACK] = {}, m[HEADS], l[HEADS];        // m: maximum, l: sum of weights
    #pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        m[h] = -INF, l[h] = 0;
        #pragma unroll
        for (int i = 0; i < N; ++i) load(x[h][i], q + (first + min(h, heads - 1)) * D + (i * LANES + column) * PACK);
    }

    for (int t0 = begin + warp * ROWS; t0 < end; t0 += step) {                  // the whole warp stays in step
        const bool mine = t0 + row < end;
        const i64 at = (cache_row(table, width, shift, seq, min(t0 + row, length - 1)) * kv_heads + head) * D;
        float k[N][PACK], v[N][PACK];
        #pragma unroll
        for (int i = 0; i < N; ++i) {
            load(k[i], keys + at + (i * LANES + column) * PACK);
            load(v[i], values + at + (i * LANES + column) * PACK);
        }
        #pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            float score = 0;
            #pragma unroll
            for (int i = 0; i < N; ++i)
                #pragma unroll
                for (int c = 0; c < PACK; ++c) score += x[h][i][c] * k[i][c];
            #pragma unroll
            for (int bit = LANES / 2; bit; bit /= 2) score += __shfl_xor_sync(ALL_LANES, score, bit);
            score = mine ? score * scale : -INF;
            const float top = fmaxf(m[h], score), correction = weight_of(m[h], top), p = weight_of(score, top);
            m[h] = top, l[h] = l[h] * correction + p;
            #pragma unroll
            for (int i = 0; i < N; ++i)
                #pragma unroll
                for (int c = 0; c < PACK; ++c) o[h][i][c] = o[h][i][c] * correction + (mine ? p * v[i][c] : 0.f);
        }
    }

    // The warp's four rows meet in its lanes, the warps in shared memory.
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
                float sum = o[h][i][c] * correction;
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
        store_split(out, part, lse, first + h, D, d, split, splits, top, weight, sum);
    }
}
