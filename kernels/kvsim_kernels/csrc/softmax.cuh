// Online softmax in base 2 and split-KV, shared by the attention kernels.
#pragma once
#include "device.cuh"

// 2^(x - top), where top may still be -infinity (nothing seen yet): then every x is -infinity or NaN.
DEVICE float weight_of(float x, float top) { return exp2_fast(x - (top == -INF ? 0.f : top)); }

// The log-sum-exp of scores, base e, from the sum of their weights, which are relative to 2^top.
DEVICE float natural_lse(float top, float weight) { return weight == 0 ? -INF : (top + log2_fast(weight)) / LOG2E; }

// Channel d of one row's share of the work: sum is the weighted sum of values, weight the sum of weights, which are
// relative to 2^top. Alone it is the output, and lse (if asked for) is the row's log-sum-exp, base e; else it goes to
// decode_merge, with an lse in base 2. Without a token it is 0; NaN stays NaN.
template <class T> DEVICE void store_split(T* out, float* part, float* lse, i64 row, int D, int d, int split, int splits,
                                           float top, float weight, float sum) {
    const float average = weight == 0 ? 0.f : sum / weight;
    if (splits == 1) {
        out[row * D + d] = from_float<T>(average);
        if (lse && d == 0) lse[row] = natural_lse(top, weight);
    } else {
        const i64 at = row * splits + split;
        part[at * D + d] = average;
        if (d == 0) lse[at] = weight == 0 ? -INF : top + log2_fast(weight);
    }
}
