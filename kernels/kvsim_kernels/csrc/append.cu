// Append the keys and values of new tokens to a cache of their own type: token i goes to row slots[i] (nowhere if negative:
// padding). Grid (16-byte words / THREADS, 2): y chooses keys or values.
#include "device.cuh"

constexpr int THREADS = 128;

__global__ void __launch_bounds__(THREADS)
kv_append(uint4* __restrict__ key_cache, uint4* __restrict__ value_cache, const uint4* __restrict__ keys,
          const uint4* __restrict__ values, const i64* __restrict__ slots, int words, int total) {
    const int i = blockIdx.x * THREADS + threadIdx.x;       // words: 16-byte words of a token, all kv heads
    if (i >= total) return;
    const i64 slot = slots[i / words];
    uint4* cache = blockIdx.y ? value_cache : key_cache;    // named: g++ 12's UBSan miscompiles an index of a choice
    if (slot >= 0) cache[slot * words + i % words] = (blockIdx.y ? values : keys)[i];
}
