// The CUDA language on a CPU, for tests: `g++ -std=c++20 -include cuda_host.h -x c++ kernel.cu`.
//
// A block's threads are fibers on one OS thread, run in turn until each waits at a barrier. One primitive, `exchange`,
// carries every warp collective. A barrier that can never be met, or that is met from two places in the source, aborts
// with a diagnosis. Under ThreadSanitizer each fiber is a thread, so a missing barrier is reported as the race it is.
// __shared__ is thread_local: one instance for all the fibers of a block. Blocks run one after the other.
#pragma once
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreReadsBegin(const char*, int), AnnotateIgnoreReadsEnd(const char*, int);
extern "C" void AnnotateIgnoreWritesBegin(const char*, int), AnnotateIgnoreWritesEnd(const char*, int);
#define HOST_TSAN(...) __VA_ARGS__
#else
#define HOST_TSAN(...)
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define HOST_ASAN(...) __VA_ARGS__
#else
#define HOST_ASAN(...)
#endif

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __shared__ thread_local
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
inline thread_local Index threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

namespace host {

constexpr size_t STACK = 64 << 10;
constexpr size_t SHARED = 227 << 10;            // the most that any chip gives a block
alignas(128) inline thread_local unsigned char shared[SHARED];

// Saves the callee's registers and the stack pointer, and goes on from another saved stack.
extern "C" void host_switch(void** save, void* to);
#if defined(__x86_64__)
asm(R"(.weak host_switch
host_switch:
    push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
    mov %rsp, (%rdi); mov %rsi, %rsp
    pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
    ret)");
constexpr int SAVED = 6;                        // words below the return address
#else
#error "kernels run on the CPU on x86-64 only: a context switch for this processor is missing"
#endif

struct Quiet {                                  // while one lives, what this thread touches is no one's race
    Quiet() { HOST_TSAN(AnnotateIgnoreReadsBegin("", 0), AnnotateIgnoreWritesBegin("", 0);) }
    ~Quiet() { HOST_TSAN(AnnotateIgnoreWritesEnd("", 0), AnnotateIgnoreReadsEnd("", 0);) }
};
struct Barrier {                                // lets its waiters go when as many have arrived as take part
    unsigned mask = ~0u, arrived = 0, phase = 0;
    int line = 0;                               // of the first to arrive
};
struct Copy { void* to; const void* from; int bytes; bool valid; };
struct Warp {
    std::deque<Barrier> barriers;               // one for each set of lanes in use; their addresses must last
    unsigned char slot[2][32][64];
};
struct Fiber {
    std::unique_ptr<char[]> stack{new char[STACK]};
    void* sp = nullptr;
    Index thread;
    unsigned rank = 0;
    bool done = false;
    const Barrier* waiting = nullptr;
    unsigned phase = 0, parity = 0;
    const char* at = "";
    int line = 0;
    std::vector<std::vector<Copy>> copies;      // groups of asynchronous copies not yet waited for, the open one last
    HOST_TSAN(void* tsan = __tsan_create_fiber(0);)
};
struct Block {
    std::vector<std::unique_ptr<Fiber>> fibers; // kept from block to block; the first `size` are in use
    std::vector<Warp> warps;
    Barrier all;
    unsigned size = 0, live = 0;
    Fiber* now = nullptr;
    void* sp = nullptr;                         // the scheduler's
    void (*body)(void**) = nullptr;
    void** arguments = nullptr;
    HOST_TSAN(void* tsan = nullptr;)
    HOST_ASAN(const void* bottom = nullptr; size_t bytes = 0;)
};
inline thread_local Block block;

[[noreturn]] inline void fail(const char* what) {
    fprintf(stderr, "%s in block (%u,%u,%u):", what, blockIdx.x, blockIdx.y, blockIdx.z);
    for (unsigned i = 0; i < block.size; ++i)
        if (const Fiber& f = *block.fibers[i]; !f.done && f.waiting)
            fprintf(stderr, " thread %u at %s of line %d (%08x)", i, f.at, f.line, f.waiting->mask);
    fprintf(stderr, "; thread %u last; %u have exited\n", block.now->rank, block.size - block.live);
    abort();
}

inline void yield() {
    HOST_ASAN(void* fake; __sanitizer_start_switch_fiber(&fake, block.bottom, block.bytes);)
    HOST_TSAN(__tsan_switch_to_fiber(block.tsan, 1);)
    host_switch(&block.now->sp, block.sp);
    HOST_ASAN(__sanitizer_finish_switch_fiber(fake, nullptr, nullptr);)
}
inline void resume(Fiber& f) {
    block.now = &f, threadIdx = f.thread, f.waiting = nullptr;
    HOST_ASAN(void* fake; __sanitizer_start_switch_fiber(&fake, f.stack.get(), STACK);)
    HOST_TSAN(__tsan_switch_to_fiber(f.tsan, 1);)
    host_switch(&block.sp, f.sp);
    HOST_ASAN(__sanitizer_finish_switch_fiber(fake, nullptr, nullptr);)
}
inline void entry() {
    HOST_ASAN(__sanitizer_finish_switch_fiber(nullptr, &block.bottom, &block.bytes);)
    for (;;) {
        HOST_TSAN(__tsan_acquire(&block);)
        block.body(block.arguments);
        HOST_TSAN(__tsan_release(&block);)
        Quiet q;
        block.now->done = true;
        if (--block.live == block.all.arrived) block.all.arrived = 0, ++block.all.phase;   // the rest wait for no one now
        yield();
    }
}

// One block, from its first thread's start to its last one's end.
inline void run(Index where, Index grid, Index shape, size_t shared_bytes) {
    Quiet q;
    blockIdx = where, gridDim = grid, blockDim = shape;
    memset(shared, 0xff, shared_bytes);         // shared memory starts as NaNs
    block.all = {}, block.live = block.size = shape.x * shape.y * shape.z;
    block.warps.clear(), block.warps.resize((block.size + 31) / 32);
    for (unsigned i = 0; i < block.size; ++i) {
        if (i == block.fibers.size()) {
            Fiber& f = *block.fibers.emplace_back(std::make_unique<Fiber>());
            auto top = reinterpret_cast<void**>(reinterpret_cast<uintptr_t>(f.stack.get() + STACK) & ~15ull);
            top[-2] = reinterpret_cast<void*>(entry);   // where the first switch returns to
            f.sp = top - 2 - SAVED;
        }
        Fiber& f = *block.fibers[i];
        f.thread = {i % shape.x, i / shape.x % shape.y, i / shape.x / shape.y};
        f.rank = i, f.done = false, f.waiting = nullptr, f.parity = 0, f.copies.assign(1, {});
    }
    HOST_TSAN(block.tsan = __tsan_get_current_fiber(); __tsan_release(&block);)
    static const bool backwards = getenv("KVSIM_HOST_BACKWARDS");   // the other extreme of the orders allowed
    for (bool moved = true; block.live; moved = false) {
        for (unsigned i = 0; i < block.size; ++i) {
            Fiber& f = *block.fibers[backwards ? block.size - 1 - i : i];
            if (!f.done && !(f.waiting && f.waiting->phase == f.phase)) resume(f), moved = true;
        }
        if (!moved) fail("deadlock");
    }
    HOST_TSAN(__tsan_acquire(&block);)
}

inline void arrive(Barrier& b, unsigned parties, const char* at, int line) {
    Fiber& f = *block.now;
    f.at = at, f.line = line;
    if (b.arrived == 0) b.line = line;
    if (b.line != line) {
        fprintf(stderr, "thread %u is at %s of line %d, others wait at line %d: ", f.rank, at, line, b.line);
        fail("divergent barrier");
    }
    if (++b.arrived == parties) { b.arrived = 0, ++b.phase; return; }
    f.waiting = &b, f.phase = b.phase;
    yield();
}
inline void arrive(unsigned mask, const char* at, int line) {
    const unsigned first = block.now->rank & ~31u, lanes = std::min(32u, block.size - first);
    if (lanes < 32) mask &= (1u << lanes) - 1;
    auto& all = block.warps[first / 32].barriers;
    auto b = std::find_if(all.begin(), all.end(), [=](auto& b) { return b.mask == mask; });
    arrive(b == all.end() ? all.emplace_back(Barrier{mask}) : *b, std::popcount(mask), at, line);
}
inline int lane() { return block.now->rank % 32; }

// Every lane of the mask gives a value and sees all the lanes' values, until its next exchange.
template <class T> struct Lanes {
    const unsigned char (*slot)[64];
    unsigned mask;
    T operator[](int lane) const {
        Quiet q;
        if (!(mask >> lane & 1)) fail("a value of a lane outside the mask is read");
        T v;
        memcpy(&v, slot[lane], sizeof v);
        return v;
    }
};
template <class T> Lanes<T> exchange(unsigned mask, const T& mine, const char* at, int line) {
    static_assert(sizeof(T) <= 64);
    Quiet q;
    Fiber* f = block.now;
    auto slot = block.warps[f->rank / 32].slot[f->parity ^= 1];   // two in turn: a fast lane spares a slow one's view
    memcpy(slot[f->rank % 32], &mine, sizeof mine);
    arrive(mask, at, line);
    return {slot, mask};
}

// As cuLaunchKernel: `arguments` points to each argument in turn.
template <auto kernel, class... A> void call(void (*)(A...), void** arguments) {
    [=]<size_t... I>(std::index_sequence<I...>) { kernel(*static_cast<A*>(arguments[I])...); }(std::index_sequence_for<A...>());
}
template <auto kernel> int launch(const unsigned* grid, const unsigned* shape, unsigned shared_bytes, void** arguments) {
    if (shared_bytes > SHARED) return 1;
    block.body = [](void** all) { call<kernel>(kernel, all); }, block.arguments = arguments;
    HOST_ASAN(__asan_poison_memory_region(shared + shared_bytes, SHARED - shared_bytes);)
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; ++y)
            for (unsigned x = 0; x < grid[0]; ++x)
                run({x, y, z}, {grid[0], grid[1], grid[2]}, {shape[0], shape[1], shape[2]}, shared_bytes);
    HOST_ASAN(__asan_unpoison_memory_region(shared, SHARED);)
    return 0;
}
}  // namespace host

// Barriers order memory; a shuffle does not, on the GPU as here.
#define HOST_LINE int line = __builtin_LINE()
inline void __syncthreads(HOST_LINE) {
    HOST_TSAN(__tsan_release(&host::block.all);)
    { host::Quiet q; host::arrive(host::block.all, host::block.live, "__syncthreads", line); }
    HOST_TSAN(__tsan_acquire(&host::block.all);)
}
inline void __syncwarp(unsigned mask = ~0u, HOST_LINE) {
    HOST_TSAN(void* sync; { host::Quiet q; sync = &host::block.warps[host::block.now->rank / 32]; } __tsan_release(sync);)
    { host::Quiet q; host::arrive(mask, "__syncwarp", line); }
    HOST_TSAN(__tsan_acquire(sync);)
}
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

template <class T> T atomicAdd(T* p, T v) { return std::atomic_ref<T>(*p).fetch_add(v); }
template <class T> T atomicMax(T* p, T v) {
    T old = *p;
    while (old < v && !std::atomic_ref<T>(*p).compare_exchange_weak(old, v)) {}
    return old;
}

using std::min, std::max;
template <class T> T __ldg(const T* p) { return *p; }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float2int_rn(float x) { return (int)nearbyintf(x); }
