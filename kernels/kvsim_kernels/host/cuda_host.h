// The CUDA language on a CPU, for tests: what a .cu needs to compile with g++. runtime.cpp runs the threads.
// Only light headers: they are parsed for every kernel that is built.
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __shared__ thread_local                 // blocks run one after the other, so one instance will do
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__ __restrict

struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct Index { unsigned x = 1, y = 1, z = 1; };
extern thread_local Index threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace host {
constexpr int SLOT = 64;                        // bytes a lane can give in one exchange
int lane();
void* shared();                                 // the block's dynamic shared memory
void sync_block(int line);
void sync_lanes(unsigned mask, int line);
const unsigned char* give(unsigned mask, const void* mine, size_t bytes, const char* at, int line);   // [32][SLOT]
void take(const unsigned char* slots, unsigned mask, int lane, void* into, size_t bytes);
void queue_copy(void* to, const void* from, int bytes, bool valid);
void close_copies();
void wait_copies(size_t pending);
int launch(void (*body)(void**), void** arguments, const unsigned* grid, const unsigned* shape, unsigned shared_bytes);

// Every lane of the mask gives a value and sees all the lanes' values, until its next exchange: this one primitive
// carries every warp collective. It orders no memory, as a shuffle on the GPU does not.
template <class T> struct Lanes {
    const unsigned char* slots;
    unsigned mask;
    T operator[](int lane) const { T v; take(slots, mask, lane, &v, sizeof v); return v; }
};
template <class T> Lanes<T> exchange(unsigned mask, const T& mine, const char* at, int line) {
    static_assert(sizeof(T) <= SLOT);
    return {give(mask, &mine, sizeof mine, at, line), mask};
}

template <size_t...> struct Numbers {};        // std::index_sequence without its header

// As cuLaunchKernel: `arguments` points to each argument in turn.
template <auto kernel, class... A> void call(void (*)(A...), void** arguments) {
    [=]<size_t... I>(Numbers<I...>) { kernel(*static_cast<A*>(arguments[I])...); }(Numbers<__integer_pack(sizeof...(A))...>());
}
template <auto kernel> int launch(const unsigned* grid, const unsigned* shape, unsigned shared_bytes, void** arguments) {
    return launch([](void** all) { call<kernel>(kernel, all); }, arguments, grid, shape, shared_bytes);
}
}  // namespace host

#define HOST_LINE int line = __builtin_LINE()
inline void __syncthreads(HOST_LINE) { host::sync_block(line); }
inline void __syncwarp(unsigned mask = ~0u, HOST_LINE) { host::sync_lanes(mask, line); }
template <class T> T __shfl_sync(unsigned m, T v, int from, int width = 32, HOST_LINE) {
    return host::exchange(m, v, "__shfl_sync", line)[(host::lane() & -width) | (from & (width - 1))];
}
template <class T> T __shfl_xor_sync(unsigned m, T v, int bits, int width = 32, HOST_LINE) {
    const int l = host::lane(), from = l ^ bits;
    auto all = host::exchange(m, v, "__shfl_xor_sync", line);
    return from / width > l / width ? v : all[from];
}
template <class T> T __shfl_down_sync(unsigned m, T v, int by, int width = 32, HOST_LINE) {
    const int l = host::lane();
    auto all = host::exchange(m, v, "__shfl_down_sync", line);
    return l % width + by < width ? all[l + by] : v;
}
template <class T> T __shfl_up_sync(unsigned m, T v, int by, int width = 32, HOST_LINE) {
    const int l = host::lane();
    auto all = host::exchange(m, v, "__shfl_up_sync", line);
    return l % width >= by ? all[l - by] : v;
}
inline unsigned __ballot_sync(unsigned m, int p, HOST_LINE) {
    auto all = host::exchange(m, p, "__ballot_sync", line);
    unsigned bits = 0;
    for (int i = 0; i < 32; ++i)
        if (m >> i & 1) bits |= unsigned(all[i] != 0) << i;
    return bits;
}
inline int __any_sync(unsigned m, int p, HOST_LINE) { return __ballot_sync(m, p, line) != 0; }
inline int __all_sync(unsigned m, int p, HOST_LINE) { return __ballot_sync(m, p, line) == m; }

template <class T> T atomicAdd(T* p, T v) {     // the fibers of a block never run at once
    T old;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    T sum = old + v;
    __atomic_store(p, &sum, __ATOMIC_RELAXED);
    return old;
}
template <class T> T atomicMax(T* p, T v) {
    T old;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    if (old < v) __atomic_store(p, &v, __ATOMIC_RELAXED);
    return old;
}

template <class T> constexpr T min(T a, T b) { return b < a ? b : a; }
template <class T> constexpr T max(T a, T b) { return a < b ? b : a; }
template <class T> T __ldg(const T* p) { return *p; }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline int __float2int_rn(float x) { return (int)nearbyintf(x); }
