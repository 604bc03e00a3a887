// Keep chosen tokens of a cache, per kv head, in place: row j of a sequence's head becomes row keep[j] (ascending, so
// keep[j] >= j). One block a (head, sequence, plane) goes forward in steps: a step's rows are all in registers before
// any is overwritten, and later steps read only rows further on. A plane is one tensor of the cache, keys, values or
// their scales, moved as `words` words a row.
#include "device.cuh"

constexpr int THREADS = 256, DEPTH = 8;                     // words a thread has under way: hides the latency of one block

template <int BYTES>
__global__ void __launch_bounds__(THREADS)
kv_compact(typename Word<BYTES>::type* __restrict__ plane, const int* __restrict__ table, const int* __restrict__ keep,
           const int* __restrict__ counts, int words, int width, int shift, int budget) {
    const int head = blockIdx.x, seq = blockIdx.y, heads = gridDim.x, count = counts[seq];
    const int* kept = keep + ((i64)seq * heads + head) * budget;
    auto row = [&](int token) { return (cache_row(table, width, shift, seq, token) * heads + head) * words; };

    const int all = count * words;
    for (int step = 0; step < all; step += THREADS * DEPTH) {
        typename Word<BYTES>::type held[DEPTH];
        #pragma unroll
        for (int u = 0; u < DEPTH; ++u)
            if (const int i = step + u * THREADS + threadIdx.x; i < all) held[u] = plane[row(kept[i / words]) + i % words];
        __syncthreads();
        #pragma unroll
        for (int u = 0; u < DEPTH; ++u)
            if (const int i = step + u * THREADS + threadIdx.x; i < all) plane[row(i / words) + i % words] = held[u];
    }
}
