// Online softmax in base 2, shared by the attention kernels.
#pragma once
#include "device.cuh"

// 2^(x - top), where top may still be -infinity (nothing seen yet): then every x is -infinity or NaN.
DEVICE float weight_of(float x, float top) { return exp2_fast(x - (top == -INF ? 0.f : top)); }
