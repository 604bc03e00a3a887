// The second step of split-KV: a row's output is the average of its splits', weighted by their sums of weights.
#include "softmax.cuh"

// Grid (rows), block (D). out [rows, D], part [rows, splits, D], lse [rows, splits] in base 2, -infinity where a split
// has no token; a row without any is zeros. total [rows], if asked for, gets the log-sum-exp of all splits, base e.
template <class T, int D> __global__ void __launch_bounds__(D)
decode_merge(T* __restrict__ out, const float* __restrict__ part, const float* __restrict__ lse,
             float* __restrict__ total, int splits) {
    const i64 row = blockIdx.x;
    float top = -INF, weight = 0, sum = 0;
    for (int s = 0; s < splits; ++s) top = fmaxf(top, lse[row * splits + s]);
    for (int s = 0; s < splits; ++s) {
        const float w = weight_of(lse[row * splits + s], top);
        weight += w, sum += w * part[(row * splits + s) * D + threadIdx.x];
    }
    out[row * D + threadIdx.x] = from_float<T>(weight == 0 ? 0.f : sum / weight);
    if (total && threadIdx.x == 0) total[row] = natural_lse(top, weight);
}
