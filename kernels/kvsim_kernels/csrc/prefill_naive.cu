// Prefill attention, the naive rung: three kernels with the whole score matrix between them, in float32 in a workspace
// scores[sequence][query head][query][key], where each matrix is most_queries x most_keys.
#include "device.cuh"

constexpr int THREADS = 128;

// What a block works on: one query token of one head of one sequence. Grid (most_queries, query heads, sequences).
struct Query {
    int first, queries, length, head, kv_head, kv_heads, visible;
    i64 row;                                                // of q and out
    float* scores;
    DEVICE Query(float* workspace, const int* lengths, const int* starts, int group, int most_keys)
        : first(starts[blockIdx.z]), queries(starts[blockIdx.z + 1] - first), length(lengths[blockIdx.z]),
          head(blockIdx.y), kv_head(head / group), kv_heads(gridDim.y / group),
          visible((int)blockIdx.x < queries ? length - queries + blockIdx.x + 1 : 0),   // causal; 0: no such query
          row(((i64)first + blockIdx.x) * gridDim.y + head),
          scores(workspace + (((i64)blockIdx.z * gridDim.y + head) * gridDim.x + blockIdx.x) * most_keys) {}
};

template <class T, int D>
__global__ void __launch_bounds__(THREADS)
prefill_naive_scores(float* __restrict__ workspace, const T* __restrict__ q, const T* __restrict__ keys,
                     const int* __restrict__ table, const int* __restrict__ lengths, const int* __restrict__ starts,
                     int width, int shift, int group, int most_keys, float scale) {
    const Query at(workspace, lengths, starts, group, most_keys);
    for (int t = threadIdx.x; t < at.visible; t += THREADS) {
        const T* x = q + at.row * D;
        const T* k = keys + (cache_row(table, width, shift, blockIdx.z, t) * at.kv_heads + at.kv_head) * D;
        float sum = 0;
        for (int d = 0; d < D; d += 8) {
            Pack<T, 8> a, b;
            a.load(x + d), b.load(k + d);
            #pragma unroll
            for (int i = 0; i < 8; ++i) sum += to_float(a.at[i]) * to_float(b.at[i]);
        }
        at.scores[t] = sum * scale;
    }
}

// One warp a row: scores become probabilities.
__global__ void prefill_naive_softmax(float* __restrict__ workspace, float* __restrict__ lse, const int* __restrict__ lengths,
                                      const int* __restrict__ starts, int group, int most_keys) {
    const Query at(workspace, lengths, starts, group, most_keys);
    float top = -INF, sum = 0;
    for (int t = threadIdx.x; t < at.visible; t += 32) top = fmaxf(top, at.scores[t]);
    for (int w = 16; w; w /= 2) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, w));
    for (int t = threadIdx.x; t < at.visible; t += 32) sum += at.scores[t] = expf(at.scores[t] - top);
    for (int w = 16; w; w /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, w);
    for (int t = threadIdx.x; t < at.visible; t += 32) at.scores[t] /= sum;
    if (lse && threadIdx.x == 0 && at.visible) lse[at.row] = top + logf(sum);
}

template <class T, int D>
__global__ void prefill_naive_values(T* __restrict__ out, float* __restrict__ workspace, const T* __restrict__ values,
                                     const int* __restrict__ table, const int* __restrict__ lengths,
                                     const int* __restrict__ starts, int width, int shift, int group, int most_keys) {
    const Query at(workspace, lengths, starts, group, most_keys);
    float sum = 0;
    for (int t = 0; t < at.visible; ++t)
        sum += at.scores[t] * to_float(values[(cache_row(table, width, shift, blockIdx.z, t) * at.kv_heads + at.kv_head) * D + threadIdx.x]);
    if (at.visible) out[at.row * D + threadIdx.x] = from_float<T>(sum);
}
