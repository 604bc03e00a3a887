// Runs the blocks of a launch on one CPU thread.
//
// A block's threads are fibers, run in turn until each waits at a barrier. A barrier that can never be met, or that is
// met from two places in the source, aborts with a diagnosis. Under ThreadSanitizer each fiber is a thread, so a missing
// barrier is reported as the race it is; what this file keeps for itself is touched in `Quiet` scopes.
#include "cuda_host.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
extern "C" void AnnotateIgnoreReadsBegin(const char*, int), AnnotateIgnoreReadsEnd(const char*, int);
extern "C" void AnnotateIgnoreWritesBegin(const char*, int), AnnotateIgnoreWritesEnd(const char*, int);
#define TSAN(...) __VA_ARGS__
#else
#define TSAN(...)
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define ASAN(...) __VA_ARGS__
#else
#define ASAN(...)
#endif

thread_local Index threadIdx, blockIdx, blockDim, gridDim;

namespace host {
namespace {

constexpr size_t STACK = 64 << 10;
constexpr size_t SHARED = 227 << 10;            // the most that any chip gives a block
alignas(128) thread_local unsigned char memory[SHARED];

// Saves the callee's registers and the stack pointer, and goes on from another saved stack.
extern "C" void host_switch(void** save, void* to);
#if defined(__x86_64__)
asm(R"(
    .pushsection .text
    .type host_switch, @function
host_switch:
    push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15
    mov %rsp, (%rdi); mov %rsi, %rsp
    pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp
    ret
    .popsection
)");
constexpr int SAVED = 6;                        // words below the return address
#else
#error "kernels run on the CPU on x86-64 only: a context switch for this processor is missing"
#endif

struct Quiet {                                  // while one lives, what this thread touches is no one's race
    Quiet() { TSAN(AnnotateIgnoreReadsBegin("", 0), AnnotateIgnoreWritesBegin("", 0);) }
    ~Quiet() { TSAN(AnnotateIgnoreWritesEnd("", 0), AnnotateIgnoreReadsEnd("", 0);) }
};
struct Barrier {                                // lets its waiters go when as many have arrived as take part
    unsigned mask = ~0u, arrived = 0, phase = 0;
    int line = 0;                               // of the first to arrive
};
struct Copy { void* to; const void* from; int bytes; bool valid; };
struct Lanes32 : Barrier {                      // and what its lanes give each other, of the last two phases in turn:
    unsigned char slots[2][32][SLOT];           // a fast lane spares a slow one's view
};
struct Warp {
    std::deque<Lanes32> sets;                   // one for each set of lanes in use; their addresses must last
};
struct Fiber {
    std::unique_ptr<char[]> stack{new char[STACK]};
    void* sp = nullptr;
    Index thread;
    unsigned rank = 0;
    bool done = false;
    const Barrier* waiting = nullptr;
    unsigned phase = 0;
    const char* at = "";
    int line = 0;
    std::vector<std::vector<Copy>> copies;      // groups of asynchronous copies not yet waited for, the open one last
    TSAN(void* tsan = __tsan_create_fiber(0);)
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
    TSAN(void* tsan = nullptr;)
    ASAN(const void* bottom = nullptr; size_t bytes = 0;)
};
thread_local Block block;

[[noreturn]] void fail(const char* what) {
    fprintf(stderr, "%s in block (%u,%u,%u):", what, blockIdx.x, blockIdx.y, blockIdx.z);
    const Fiber* last = nullptr;                // one line for neighbours that wait in the same place
    for (unsigned i = 0; i < block.size; ++i) {
        const Fiber& f = *block.fibers[i];
        if (f.done || !f.waiting || (last && last->line == f.line && last->at == f.at)) continue;
        fprintf(stderr, "\n  from thread %u on at %s of line %d, lanes %08x", i, f.at, f.line, f.waiting->mask);
        last = &f;
    }
    fprintf(stderr, "\n  thread %u ran last; %u have exited\n", block.now->rank, block.size - block.live);
    abort();
}

void yield() {
    ASAN(void* fake; __sanitizer_start_switch_fiber(&fake, block.bottom, block.bytes);)
    TSAN(__tsan_switch_to_fiber(block.tsan, 1);)
    host_switch(&block.now->sp, block.sp);
    ASAN(__sanitizer_finish_switch_fiber(fake, nullptr, nullptr);)
}
void resume(Fiber& f) {
    block.now = &f, threadIdx = f.thread, f.waiting = nullptr;
    ASAN(void* fake; __sanitizer_start_switch_fiber(&fake, f.stack.get(), STACK);)
    TSAN(__tsan_switch_to_fiber(f.tsan, 1);)
    host_switch(&block.sp, f.sp);
    ASAN(__sanitizer_finish_switch_fiber(fake, nullptr, nullptr);)
}
void entry() {
    ASAN(__sanitizer_finish_switch_fiber(nullptr, &block.bottom, &block.bytes);)
    for (;;) {
        TSAN(__tsan_acquire(&block);)
        block.body(block.arguments);
        TSAN(__tsan_release(&block);)
        Quiet q;
        block.now->done = true;
        if (--block.live == block.all.arrived) block.all.arrived = 0, ++block.all.phase;   // the rest wait for no one now
        yield();
    }
}

// One block, from its first thread's start to its last one's end.
void run(Index where, Index grid, Index shape, size_t shared_bytes) {
    Quiet q;
    blockIdx = where, gridDim = grid, blockDim = shape;
    memset(memory, 0xff, shared_bytes);         // shared memory starts as NaNs
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
        f.rank = i, f.done = false, f.waiting = nullptr, f.copies.assign(1, {});
    }
    TSAN(block.tsan = __tsan_get_current_fiber(); __tsan_release(&block);)
    static const bool backwards = getenv("KVSIM_HOST_BACKWARDS");   // the other extreme of the orders allowed
    for (bool moved = true; block.live; moved = false) {
        for (unsigned i = 0; i < block.size; ++i) {
            Fiber& f = *block.fibers[backwards ? block.size - 1 - i : i];
            if (!f.done && !(f.waiting && f.waiting->phase == f.phase)) resume(f), moved = true;
        }
        if (!moved) fail("deadlock");
    }
    TSAN(__tsan_acquire(&block);)
}

void arrive(Barrier& b, unsigned parties, const char* at, int line) {
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
Lanes32& set_of(unsigned mask) {
    const unsigned first = block.now->rank & ~31u, lanes = std::min(32u, block.size - first);
    if (lanes < 32) mask &= (1u << lanes) - 1;
    auto& all = block.warps[first / 32].sets;
    auto found = std::find_if(all.begin(), all.end(), [=](auto& set) { return set.mask == mask; });
    return found == all.end() ? all.emplace_back(Lanes32{{mask}, {}}) : *found;
}
}  // namespace

int lane() { return block.now->rank % 32; }
void* shared() { return memory; }

// Barriers order memory.
void sync_block(int line) {
    TSAN(__tsan_release(&block.all);)
    { Quiet q; arrive(block.all, block.live, "__syncthreads", line); }
    TSAN(__tsan_acquire(&block.all);)
}
void sync_lanes(unsigned mask, int line) {
    TSAN(void* sync; { Quiet q; sync = &block.warps[block.now->rank / 32]; } __tsan_release(sync);)
    { Quiet q; Lanes32& set = set_of(mask); arrive(set, std::popcount(set.mask), "__syncwarp", line); }
    TSAN(__tsan_acquire(sync);)
}

const unsigned char* give(unsigned mask, const void* mine, size_t bytes, const char* at, int line) {
    Quiet q;
    Lanes32& set = set_of(mask);
    auto slots = set.slots[set.phase % 2];
    memcpy(slots[lane()], mine, bytes);
    arrive(set, std::popcount(set.mask), at, line);
    return slots[0];
}
void take(const unsigned char* slots, unsigned mask, int lane, void* into, size_t bytes) {
    Quiet q;
    if (!(mask >> lane & 1)) fail("a lane outside the mask is read");
    memcpy(into, slots + lane * SLOT, bytes);
}

// An asynchronous copy's target is garbage from its issue until its wait, so both a missing wait and a stage refilled
// too early show, in the values and to ThreadSanitizer (which sees assignments, not memcpy).
void queue_copy(void* to, const void* from, int bytes, bool valid) {
    for (int i = 0; i < bytes / 4; ++i) static_cast<unsigned*>(to)[i] = ~0u;
    Quiet q;
    block.now->copies.back().push_back({to, from, bytes, valid});
}
void close_copies() { Quiet q; block.now->copies.emplace_back(); }
void wait_copies(size_t pending) {
    auto pop = [] { Quiet q; auto& all = block.now->copies; auto group = all.front(); all.erase(all.begin()); return group; };
    while (block.now->copies.size() > pending + 1)
        for (const Copy& c : pop())
            for (int i = 0; i < c.bytes / 4; ++i)
                static_cast<unsigned*>(c.to)[i] = c.valid ? static_cast<const unsigned*>(c.from)[i] : 0;
}

int launch(void (*body)(void**), void** arguments, const unsigned* grid, const unsigned* shape, unsigned shared_bytes) {
    if (shared_bytes > SHARED) return 1;
    block.body = body, block.arguments = arguments;
    ASAN(__asan_poison_memory_region(memory + shared_bytes, SHARED - shared_bytes);)
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; ++y)
            for (unsigned x = 0; x < grid[0]; ++x)
                run({x, y, z}, {grid[0], grid[1], grid[2]}, {shape[0], shape[1], shape[2]}, shared_bytes);
    ASAN(__asan_unpoison_memory_region(memory, SHARED);)
    return 0;
}
}  // namespace host
