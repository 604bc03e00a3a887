// Prefill attention, the fast rung: keys and values stream through shared memory in tiles and softmax is kept online
// (FlashAttention-2), so the S x S matrix never exists.
//
// The G query heads that share a kv head are packed into the rows of one tile, token by token: row r of a sequence is
// query token r / G, head r % G of its group. So keys are read once for the group, and short chunks still fill a tile.
#include "device.cuh"

constexpr int WARPS = 4;

template <class T, int D, int TILES>                        // TILES: 16-row tiles a warp
__global__ void __launch_bounds__(WARPS * 32)
prefill_flash(T* __restrict__ out, float* __restrict__ lse, const T* __restrict__ q,
              const T* __restrict__ keys, const T* __restrict__ values, const int* __restrict__ table,
              const int* __restrict__ lengths, const int* __restrict__ starts, int width, int shift, int group, float scale) {
    constexpr int ROWS = WARPS * TILES * 16, KEYS = D > 64 ? 32 : 64, C = D / 8;    // C: 16-byte chunks a row
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head = blockIdx.y, seq = blockIdx.z, heads = gridDim.y;
    const int first = starts[seq], queries = starts[seq + 1] - first, length = lengths[seq], before = length - queries;
    const int row0 = (gridDim.x - 1 - blockIdx.x) * ROWS, rows = queries * group;   // the longest rows start first
    if (row0 >= rows) return;
    const int every = before + row0 / group + 1;                                    // keys that every row sees
    const int end = before + (min(row0 + ROWS, rows) - 1) / group + 1;              // keys that some row sees

    T* const tile_q = static_cast<T*>(shared_memory());
    T* const ring = tile_q + ROWS * D;                      // two stages of KEYS keys and KEYS values

    auto at = [](int r, int c) { return swizzled<C>(r, c) * 8; };
    auto query = [&](int row) { return ((i64)(first + row / group) * heads + head) * group + row % group; };
    auto fetch = [&](int t0) {
        T* tile = ring + t0 / KEYS % 2 * (2 * KEYS * D);
        #pragma unroll 2                                    // more at once would spill
        for (int i = threadIdx.x; i < KEYS * C; i += WARPS * 32) {
            const int r = i / C, c = i % C, t = t0 + r;
            const i64 from = (cache_row(table, width, shift, seq, min(t, length - 1)) * heads + head) * D + c * 8;
            copy_async<16>(tile + at(r, c), keys + from, t < end);
            copy_async<16>(tile + KEYS * D + at(r, c), values + from, t < end);
        }
        copy_commit();
    };

    for (int i = threadIdx.x; i < ROWS * C; i += WARPS * 32) {
        const int r = i / C, c = i % C;
        copy_async<16>(tile_q + at(r, c), q + query(min(row0 + r, rows - 1)) * D + c * 8, row0 + r < rows);
    }
    fetch(0);

    T* const mine = tile_q + warp * TILES * 16 * D;         // this warp's query rows, later its outputs
    const int top_row = row0 + warp * TILES * 16;
    const float unit = scale * LOG2E;
    float o[TILES][D / 8][4] = {}, m[TILES][2], l[TILES][2] = {};
    #pragma unroll
    for (int i = 0; i < TILES; ++i) m[i][0] = m[i][1] = -INF;

    for (int t0 = 0; t0 < end; t0 += KEYS) {
        copy_wait<0>();
        __syncthreads();                                    // this stage is here, and the other one is used up
        if (t0 + KEYS < end) fetch(t0 + KEYS);
        T* tile = ring + t0 / KEYS % 2 * (2 * KEYS * D);

        float s[TILES][KEYS / 8][4] = {};
        #pragma unroll
        for (int k = 0; k < D / 16; ++k) {
            unsigned a[TILES][4];
            #pragma unroll
            for (int i = 0; i < TILES; ++i) ldmatrix(a[i], mine + at(i * 16 + lane % 16, k * 2 + lane / 16));
            #pragma unroll
            for (int n = 0; n < KEYS / 16; ++n) {
                unsigned b[4];
                ldmatrix(b, tile + at(n * 16 + lane % 8 + lane / 16 * 8, k * 2 + lane / 8 % 2));
                const unsigned b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
                #pragma unroll
                for (int i = 0; i < TILES; ++i) mma(s[i][2 * n], a[i], b0, T()), mma(s[i][2 * n + 1], a[i], b1, T());
            }
        }

        #pragma unroll
        for (int i = 0; i < TILES; ++i)
            #pragma unroll
            for (int h = 0; h < 2; ++h) {
                if (t0 + KEYS > every) {
                    const int row = min(top_row + i * 16 + h * 8 + lane / 4, rows - 1), last = before + row / group;
                    #pragma unroll
                    for (int e = 0; e < KEYS / 4; ++e)
                        if (t0 + e / 2 * 8 + lane % 4 * 2 + e % 2 > last) s[i][e / 2][2 * h + e % 2] = -INF;
                }
                float top = m[i][h];
                #pragma unroll
                for (int n = 0; n < KEYS / 8; ++n) top = fmaxf(top, fmaxf(s[i][n][2 * h], s[i][n][2 * h + 1]));
                top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));     // the four lanes that hold a row agree
                top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
                const float keep = exp2_fast((m[i][h] - top) * unit);   // every row sees key 0, so top is finite
                m[i][h] = top, l[i][h] *= keep;
                #pragma unroll
                for (int n = 0; n < D / 8; ++n) o[i][n][2 * h] *= keep, o[i][n][2 * h + 1] *= keep;
                #pragma unroll
                for (int e = 0; e < KEYS / 4; ++e) {
                    float& x = s[i][e / 2][2 * h + e % 2];
                    l[i][h] += x = exp2_fast(x * unit - top * unit);
                }
            }

        #pragma unroll
        for (int k = 0; k < KEYS / 16; ++k) {
            unsigned p[TILES][4];
            #pragma unroll
            for (int i = 0; i < TILES; ++i)
                #pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const float* x = &s[i][2 * k + e / 2][e % 2 * 2];
                    p[i][e] = pack2(x[0], x[1], T());
                }
            #pragma unroll
            for (int n = 0; n < D / 16; ++n) {
                unsigned b[4];
                ldmatrix_trans(b, tile + KEYS * D + at(k * 16 + lane % 16, n * 2 + lane / 16));
                const unsigned b0[2] = {b[0], b[1]}, b1[2] = {b[2], b[3]};
                #pragma unroll
                for (int i = 0; i < TILES; ++i) mma(o[i][2 * n], p[i], b0, T()), mma(o[i][2 * n + 1], p[i], b1, T());
            }
        }
    }

    __syncwarp();                                           // every lane is done with the query rows
    #pragma unroll
    for (int i = 0; i < TILES; ++i)
        #pragma unroll
        for (int h = 0; h < 2; ++h) {
            l[i][h] += __shfl_xor_sync(ALL_LANES, l[i][h], 1);
            l[i][h] += __shfl_xor_sync(ALL_LANES, l[i][h], 2);
            const int r = i * 16 + h * 8 + lane / 4;
            if (lse && lane % 4 == 0 && top_row + r < rows) lse[query(top_row + r)] = m[i][h] * scale + logf(l[i][h]);
            #pragma unroll
            for (int n = 0; n < D / 8; ++n)
                reinterpret_cast<unsigned*>(mine + at(r, n))[lane % 4] =
                    pack2(o[i][n][2 * h] / l[i][h], o[i][n][2 * h + 1] / l[i][h], T());
        }
    __syncwarp();
    for (int i = lane; i < TILES * 16 * C; i += 32) {
        const int r = i / C, c = i % C;
        if (top_row + r < rows)
            *reinterpret_cast<uint4*>(out + query(top_row + r) * D + c * 8) = *reinterpret_cast<uint4*>(mine + at(r, c));
    }
}
