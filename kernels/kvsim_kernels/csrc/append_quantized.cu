// Append the keys and values of new tokens to a quantized cache; formats and rounding as in reference/quantize.py.
// Each lane makes 16 bytes of codes, neighbours of one head, and stores them at once; the lanes of a head (int4: of a
// group) agree on their scale by shuffles. Rows are (token, kv head); token i goes to slots[i], nowhere if negative.
// Grid (rows / rows a block, 2): y chooses keys or values.
#include "device.cuh"

constexpr int THREADS = 128;
constexpr float HALF_MAX = 65504, NOT_A_NUMBER = __builtin_bit_cast(float, 0x7fffffff);

DEVICE constexpr int power_of_two(int n) { return n <= 1 ? 1 : 2 * power_of_two((n + 1) / 2); }

// N elements, widened; `part` of the head's parts.
template <int N, class T> DEVICE void load(float (&x)[N], const T* head, int part) {
    #pragma unroll
    for (int i = 0; i < N; i += 8) {
        Pack<T, 8> in;
        in.load(head + part * N + i);
        #pragma unroll
        for (int e = 0; e < 8; ++e) x[i + e] = to_float(in.at[e]);
    }
}
DEVICE half_t rounded(float scale) { return from_float<half_t>(scale > HALF_MAX ? HALF_MAX : scale); }
DEVICE float reciprocal(half_t scale) { const float wide = to_float(scale); return wide > 0 ? 1 / wide : 0.f; }   // 0 for NaN
DEVICE float clamped(float x, float low, float high) { return fminf(fmaxf(x, low), high); }

DEVICE constexpr float largest(signed char) { return 127; }
DEVICE constexpr float largest(fp8_t) { return 448; }
DEVICE signed char code(float x, signed char) { return (signed char)__float2int_rn(clamped(x, -127, 127)); }
DEVICE fp8_t code(float x, fp8_t) { return from_float<fp8_t>(x); }

// int8 and fp8: one scale a token and head, scales[row][keys, values]; without `scales` (fp8 only) one scale a tensor.
template <class C, class T, int D>
__global__ void __launch_bounds__(THREADS)
kv_append_scaled(C* __restrict__ key_cache, C* __restrict__ value_cache, half_t* __restrict__ scales,
                 const T* __restrict__ keys, const T* __restrict__ values, const i64* __restrict__ slots,
                 int rows, int heads, float key_scale, float value_scale) {
    constexpr int N = 16, PARTS = D / N, LANES = power_of_two(PARTS);
    const int part = threadIdx.x % LANES;
    const int asked = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES, row = min(asked, rows - 1);
    const i64 slot = slots[row / heads], to = slot * heads + row % heads;

    float x[N] = {};
    if (part < PARTS) load(x, (blockIdx.y ? values : keys) + (i64)row * D, part);
    float inverse = 1 / (blockIdx.y ? value_scale : key_scale);
    half_t scale;
    if (scales) {
        unsigned top = 0;                                   // bits of |x|: as integers NaN > infinity > numbers
        #pragma unroll
        for (int i = 0; i < N; ++i) top = max(top, __float_as_uint(x[i]) & 0x7fffffffu);
        #pragma unroll
        for (int w = LANES / 2; w; w /= 2) top = max(top, __shfl_xor_sync(ALL_LANES, top, w));
        scale = rounded(top < 0x7f800000u ? __uint_as_float(top) / largest(C()) : NOT_A_NUMBER);
        inverse = reciprocal(scale);
    }
    if (part >= PARTS || asked >= rows || slot < 0) return;
    Pack<C, N> out;
    #pragma unroll
    for (int i = 0; i < N; ++i) out.at[i] = code(inverse ? x[i] * inverse : 0.f, C());
    out.store((blockIdx.y ? value_cache : key_cache) + to * D + part * N);
    if (scales && part == 0) scales[to * 2 + blockIdx.y] = scale;
}

// int4: scale and zero of each GROUP neighbours, scales[row][keys, values][group][scale, zero].
template <class T, int D, int GROUP>
__global__ void __launch_bounds__(THREADS)
kv_append_int4(unsigned char* __restrict__ key_cache, unsigned char* __restrict__ value_cache,
               half_t* __restrict__ scales, const T* __restrict__ keys, const T* __restrict__ values,
               const i64* __restrict__ slots, int rows, int heads) {
    constexpr int N = 32, PARTS = D / N, LANES = power_of_two(PARTS), SHARERS = GROUP / N;
    static_assert(GROUP % N == 0 && D % GROUP == 0);
    const int part = threadIdx.x % LANES;
    const int asked = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES, row = min(asked, rows - 1);
    const i64 slot = slots[row / heads], to = slot * heads + row % heads;

    float x[N] = {};
    if (part < PARTS) load(x, (blockIdx.y ? values : keys) + (i64)row * D, part);
    float low = INF, high = -INF, poison = 0;               // poison: NaN if some number is not finite
    #pragma unroll
    for (int i = 0; i < N; ++i) low = fminf(low, x[i]), high = fmaxf(high, x[i]), poison += x[i] - x[i];
    #pragma unroll
    for (int w = SHARERS / 2; w; w /= 2) {
        low = fminf(low, __shfl_xor_sync(ALL_LANES, low, w));
        high = fmaxf(high, __shfl_xor_sync(ALL_LANES, high, w));
        poison += __shfl_xor_sync(ALL_LANES, poison, w);
    }
    if (part >= PARTS || asked >= rows || slot < 0) return;
    const half_t zero = from_float<half_t>(clamped(low, -HALF_MAX, HALF_MAX) + poison);
    const float base = to_float(zero);
    const half_t scale = rounded(fmaxf(high - base, 0.f) / 15 + poison);
    const float inverse = reciprocal(scale);
    Pack<unsigned, 4> codes;
    #pragma unroll
    for (int i = 0; i < N; ++i)
        codes.at[i / 8] |= (unsigned)__float2int_rn(inverse ? clamped((x[i] - base) * inverse, 0, 15) : 0.f) << i % 8 * 4;
    codes.store(reinterpret_cast<unsigned*>((blockIdx.y ? value_cache : key_cache) + (to * D + part * N) / 2));
    if (part % SHARERS == 0) {
        Pack<half_t, 2> both;
        both.at[0] = scale, both.at[1] = zero;
        both.store(scales + ((to * 2 + blockIdx.y) * (D / GROUP) + part / SHARERS) * 2);
    }
}
