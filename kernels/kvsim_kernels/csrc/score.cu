// Attention each key received, for heavy-hitter eviction (H2O): scores[sequence][kv head][key] += sum over the queries i
// that see the key, and over the heads of the group, of softmax(q_i k)[key]. The softmax is exact, not a partial one,
// because attention has left its normaliser: the log-sum-exp of each query. So one light pass over the keys is enough.
//
// A block owns 64 keys, 16 a warp, as the rows of mma (they stay in registers); queries pass by as columns. No atomics.
#include "device.cuh"

constexpr int WARPS = 4, KEYS = WARPS * 16;

template <class T, int D>
__global__ void __launch_bounds__(WARPS * 32)
kv_score(float* __restrict__ scores, const T* __restrict__ q, const float* __restrict__ lse, const T* __restrict__ keys,
         const int* __restrict__ table, const int* __restrict__ lengths, const int* __restrict__ starts,
         int width, int shift, int group, int capacity, float scale) {
    constexpr int C = D / 8, QUERIES = 32;                  // 16-byte chunks a row; query rows a step
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head = blockIdx.y, seq = blockIdx.z, heads = gridDim.y;
    const int first = starts[seq], queries = starts[seq + 1] - first, length = lengths[seq], before = length - queries;
    const int t0 = blockIdx.x * KEYS, rows = queries * group;   // query rows as in prefill_flash.cu: token r / group
    if (t0 >= length || !queries) return;

    T* const tile_k = static_cast<T*>(shared_memory());
    T* const tile_q = tile_k + KEYS * D;
    auto at = [](int r, int c) { return swizzled<C>(r, c) * 8; };
    auto query = [&](int row) { return ((i64)(first + row / group) * heads + head) * group + row % group; };

    for (int i = threadIdx.x; i < KEYS * C; i += WARPS * 32) {
        const int r = i / C, c = i % C, t = t0 + r;
        const i64 row = cache_row(table, width, shift, seq, min(t, length - 1)) * heads + head;
        copy_async<16>(tile_k + at(r, c), keys + row * D + c * 8, t < length);
    }

    unsigned a[D / 16][4];
    float total[2] = {};
    const int start = max(0, t0 - before) * group;          // the first row that sees the block's first key
    for (int r0 = start; r0 < rows; r0 += QUERIES) {
        for (int i = threadIdx.x; i < QUERIES * C; i += WARPS * 32) {
            const int r = i / C, c = i % C;
            copy_async<16>(tile_q + at(r, c), q + query(min(r0 + r, rows - 1)) * D + c * 8, r0 + r < rows);
        }
        copy_commit();
        copy_wait<0>();
        __syncthreads();
        if (r0 == start)
            #pragma unroll
            for (int k = 0; k < D / 16; ++k) ldmatrix(a[k], tile_k + at(warp * 16 + lane % 16, k * 2 + lane / 16));
        for (int n = 0; n < QUERIES && r0 + n < rows; n += 16) {
            float s[2][4] = {};
            #pragma unroll
            for (int k = 0; k < D / 16; ++k) {
                unsigned b[4];
                ldmatrix(b, tile_q + at(n + lane % 8 + lane / 16 * 8, k * 2 + lane / 8 % 2));
                const unsigned b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
                mma(s[0], a[k], b0, T()), mma(s[1], a[k], b1, T());
            }
            #pragma unroll
            for (int e = 0; e < 4; ++e) {                   // the lane's four columns: queries
                const int row = r0 + n + e / 2 * 8 + lane % 4 * 2 + e % 2;
                if (row >= rows) continue;
                const float normaliser = lse[query(row)];
                #pragma unroll
                for (int h = 0; h < 2; ++h) {               // and its two rows: keys
                    const int t = t0 + warp * 16 + h * 8 + lane / 4;
                    if (row >= (t - before) * group)        // the query sees the key
                        total[h] += exp2_fast((s[e / 2][2 * h + e % 2] * scale - normaliser) * LOG2E);
                }
            }
        }
        __syncthreads();                                    // the query tile may be overwritten
    }
    #pragma unroll
    for (int h = 0; h < 2; ++h) {
        total[h] += __shfl_xor_sync(ALL_LANES, total[h], 1);
        total[h] += __shfl_xor_sync(ALL_LANES, total[h], 2);
        const int t = t0 + warp * 16 + h * 8 + lane / 4;
        if (lane % 4 == 0 && t < length) scores[((i64)seq * heads + head) * capacity + t] += total[h];
    }
}
