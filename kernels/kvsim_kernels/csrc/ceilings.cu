// The denominators of every speed: how fast this device copies, reads, and launches nothing.
#include "device.cuh"

constexpr int THREADS = 256, DEPTH = 8;                     // 16-byte words a thread has under way

__global__ void __launch_bounds__(THREADS)
ceiling_copy(uint4* __restrict__ to, const uint4* __restrict__ from, i64 words) {
    for (i64 i0 = (i64)blockIdx.x * THREADS * DEPTH + threadIdx.x; i0 < words; i0 += (i64)gridDim.x * THREADS * DEPTH) {
        uint4 held[DEPTH];
        #pragma unroll
        for (int u = 0; u < DEPTH; ++u)
            if (i0 + u * THREADS < words) held[u] = from[i0 + u * THREADS];
        #pragma unroll
        for (int u = 0; u < DEPTH; ++u)
            if (i0 + u * THREADS < words) to[i0 + u * THREADS] = held[u];
    }
}

// sums[block] = the sum, mod 2^32, of the 32-bit words that the block read: so that no read is optimised away.
__global__ void __launch_bounds__(THREADS)
ceiling_read(unsigned* __restrict__ sums, const uint4* __restrict__ from, i64 words) {
    unsigned sum = 0;
    for (i64 i0 = (i64)blockIdx.x * THREADS * DEPTH + threadIdx.x; i0 < words; i0 += (i64)gridDim.x * THREADS * DEPTH) {
        uint4 held[DEPTH] = {};
        #pragma unroll
        for (int u = 0; u < DEPTH; ++u)
            if (i0 + u * THREADS < words) held[u] = from[i0 + u * THREADS];
        #pragma unroll
        for (int u = 0; u < DEPTH; ++u) sum += held[u].x + held[u].y + held[u].z + held[u].w;
    }
    for (int w = 16; w; w /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, w);
    __shared__ unsigned warps[THREADS / 32];
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < THREADS / 32; ++w) sum += warps[w];
    sums[blockIdx.x] = sum;
}

__global__ void ceiling_empty() {}
