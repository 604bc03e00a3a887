// Copy blocks of a cache: block pairs[i][0] of `from` to block pairs[i][1] of `to`, a batch of pairs in one launch.
// Either side may be pinned host memory. Grid (pairs, parts of a block).
#include "device.cuh"

constexpr int THREADS = 256, DEPTH = 4;

__global__ void __launch_bounds__(THREADS)
kv_copy(uint4* __restrict__ to, const uint4* __restrict__ from, const i64* __restrict__ pairs, i64 words) {
    const i64 source = pairs[2 * (i64)blockIdx.x] * words, target = pairs[2 * (i64)blockIdx.x + 1] * words;
    const i64 i0 = (i64)blockIdx.y * THREADS * DEPTH + threadIdx.x;
    uint4 held[DEPTH];
    #pragma unroll
    for (int u = 0; u < DEPTH; ++u)
        if (const i64 i = i0 + u * THREADS; i < words) held[u] = from[source + i];
    #pragma unroll
    for (int u = 0; u < DEPTH; ++u)
        if (const i64 i = i0 + u * THREADS; i < words) to[target + i] = held[u];
}
