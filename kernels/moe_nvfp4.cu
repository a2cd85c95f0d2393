// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// The experts of generated rows, in three launches:
//   moe_nvfp4_gate_up  inner[p] = gelu_tanh(bf16(G_e x)) * bf16(U_e x), pair p = (token, k),
//                      e = expert_ids[p], x = row p / CHOSEN
//   moe_nvfp4_down     results[p] = bf16(D_e inner[p])
//   moe_nvfp4_combine  out[token] = sum over k of weights[token, k] * results[token, k]
//
// x (T, H) bf16; inner (T K, I) bf16; results (T K, H) bf16; out (T, H) f32
// expert_ids (T, K) i32, -1 for rows that are padding; expert_weights (T, K) f32
// codes, scales  (E, tiles of (2 I, H), gate and up interleaved by 8 rows), (E, tiles of (H, I))
// row_scales     (E, row tiles, 2) f32
//
// Bytes moved: 27 / 16 H I for each distinct expert (its three matrices, once), and T K (2 H + 4 I)
// 2 of rows. Bound by reading the weights, closely followed by decoding them.
// An item is one row tile of one distinct expert, and a warp's: it takes all columns, so that no
// sum crosses warps, and its lanes hold gate and up of the same numbers. The rows of an expert are
// the columns of one matrix instruction (of two for more than 8), so its weights are read once.
// Blocks that just fill the device share the items evenly, each a run of neighbours, so that its
// warps read the same rows of activations at about the same time. Weights come through a ring of
// shared memory (weight_ring.cuh) that runs on across items.
// moe_nvfp4_down must come right behind moe_nvfp4_gate_up. A row's sums never depend on who shares
// its experts or on the grid; combine adds best expert first.
//
// With DENSE the launches do a layer's dense MLP too, whose matrices have H and DENSE * I columns:
//   gate_up  dense_inner = gelu_tanh(bf16(G x')) * bf16(U x'), x' (T, H) bf16
//   down     dense_parts[:, j] = D[:, j I ..] dense_inner[:, j I ..], j < DENSE; (T, DENSE, H) f32,
//            to be added in order and rounded by who reads them
// A block's share of it comes first: gate_up's needs no routing, so that its weights are requested
// before the wait.
//
// PRECOND: at most 16 tokens and 128 pairs; a token's expert ids differ; H and I multiples of 8.
// PRECOND (DENSE): I a multiple of 64
// Constants: ENTRY (0 gate_up, 1 down, 2 combine), CHOSEN (K); 0 and 1: COLUMNS, COLUMN_TILES,
// BLOCKS (8 tokens or fewer: 1, else 2), NUM_EXPERTS (E), DENSE (0: no dense MLP), WARPS,
// MIN_BLOCKS, STAGE_TILES and STAGES of the ring, ACTIVATIONS (tiles of them in flight, a divisor
// of STAGE_TILES).

#if ENTRY != 2

#include "expert_routing.cuh"
#include "weight_ring.cuh"

#define THREADS (WARPS * WARP)

struct Matrices {
    const uint4* __restrict__ codes;
    const u32* __restrict__ scales;
    const float* __restrict__ row_scales;
};

struct Work {
    Matrices experts, dense;
    int num_row_tiles;           // of one unit
    int num_tokens;
};

// An item: a row tile of a unit. Units are the DENSE parts of the dense MLP, then the distinct
// experts.
struct Place {
    int unit, tile;
};

// A block's items: first so many of the dense MLP's, then of the experts'.
struct Share {
    int first_dense, num_dense, first_expert, num_items;
    float per_unit;              // 1 / num_row_tiles
};

__device__ __forceinline__ int part_of(int count, int block) {
    return (u32)count * (u32)block / gridDim.x;
}

__device__ __forceinline__ void find_dense(Share& share, int num_row_tiles) {
    share.first_dense = part_of(DENSE * num_row_tiles, blockIdx.x);
    share.num_dense = part_of(DENSE * num_row_tiles, blockIdx.x + 1) - share.first_dense;
    share.per_unit = 1.0f / (float)num_row_tiles;
}

// Behind find_dense. So many experts that all blocks have as many items in all, but for one; where
// there are few, neighbours may both do an item.
__device__ __forceinline__ void find_experts(Share& share, int num_row_tiles, int num_hit) {
    const int all = (DENSE + num_hit) * num_row_tiles;
    const int end = part_of(all, blockIdx.x + 1) - share.first_dense - share.num_dense;
    share.first_expert = part_of(all, blockIdx.x) - share.first_dense;
    share.num_items = share.num_dense + max(end - share.first_expert, 0);
}

__device__ __forceinline__ Place place_of(const Share& share, int item, int num_row_tiles) {
    const bool dense = item < share.num_dense;
    const int number = item + (dense ? share.first_dense : share.first_expert - share.num_dense);
    // exact: a half off any border, and far fewer than 2^20 items
    const int unit = (int)(((float)number + 0.5f) * share.per_unit);
    return {unit + (dense ? 0 : DENSE), number - unit * num_row_tiles};
}

// A warp's first item. Neighbours in a block go to different schedulers, and the blocks of a
// multiprocessor begin at different ones.
__device__ __forceinline__ int first_item() {
    const u32 turn = blockIdx.x * MIN_BLOCKS / gridDim.x;
    return (threadIdx.x / WARP + turn * (WARPS / 2 + 1)) % WARPS;
}

// Rows that a unit has, and the n-th one's token or pair.
__device__ __forceinline__ int num_rows(const Work& work, const Routing& routing, int unit) {
    if (unit < DENSE) return work.num_tokens;
    return routing.first[unit - DENSE + 1] - routing.first[unit - DENSE];
}

__device__ __forceinline__ int row_of(const Routing& routing, int unit, int n) {
    return unit < DENSE ? n : routing.pairs[routing.first[unit - DENSE] + n];
}

__device__ __forceinline__ Source source_of(const Work& work, const Routing& routing,
                                            const Place& at, int lane) {
    const bool dense = at.unit < DENSE;
    const Matrices& from = dense ? work.dense : work.experts;
    if (ENTRY == 1 && dense)             // a part of each row
        return source_at(from.codes, from.scales, from.row_scales,
                         (u32)(at.tile * DENSE + at.unit) * COLUMN_TILES, at.tile, lane);
    const u32 matrix = dense ? at.unit : routing.hit[at.unit - DENSE];
    const u32 row_tile = matrix * work.num_row_tiles + at.tile;
    return source_at(from.codes, from.scales, from.row_scales, row_tile * COLUMN_TILES, row_tile,
                     lane);
}

// One warp's ring, and what it requests next.
struct Ring {
    Slots slots;
    u32 read, filled;            // the slots that are read and filled next
    int item, stage;             // of what is requested next; ITEM_STAGES: the next item's first
    Source from;
};

__device__ __forceinline__ void request_next(Ring& ring, const Work& work, const Routing& routing,
                                             const Share& share, int lane) {
    if (ring.stage == ITEM_STAGES) {
        ring.stage = 0;
        ring.item += WARPS;
        if (ring.item < share.num_items)
            ring.from = source_of(work, routing, place_of(share, ring.item, work.num_row_tiles),
                                  lane);
    }
    if (ring.item < share.num_items)
        request_stage(ring.slots, ring.filled, ring.from, ring.stage++, lane);
    commit_copies();
    ring.filled = next_slot(ring.filled);
}

// This lane's part of a tile of activations, 8 t columns in.
template <int NB>
__device__ __forceinline__ void load_rows(ActivationTile (&x)[NB], const u16* const (&rows)[NB],
                                          int tile, int lane) {
#if COLUMNS % TILE_COLUMNS == 0
#pragma unroll
    for (int m = 0; m < NB; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h)
            x[m].half[h] = load_activations(rows[m] + tile * TILE_COLUMNS + 32 * h);
#else
    load_activation_tile<NB>(x, rows, lane & 3, tile, COLUMNS);
#endif
}

// The next item's products with the rows at `rows`; gives the scales of its rows.
template <int NB>
__device__ __forceinline__ float2 multiply_item(float (&acc)[2][NB][4], Ring& ring,
                                                const u16* const (&rows)[NB], const Work& work,
                                                const Routing& routing, const Share& share,
                                                int lane) {
    constexpr int AHEAD = NB == 1 ? ACTIVATIONS : 1;
    ActivationTile x[AHEAD][NB];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
        if (i < COLUMN_TILES) load_rows<NB>(x[i], rows, i, lane);
    u32 slot = 0;
#pragma unroll(ITEM_STAGES <= 3 ? 3 : 1)
    for (int stage = 0; stage < ITEM_STAGES; ++stage) {
        wait_for_copies<STAGES - 2>();
        __syncwarp();            // what other lanes copied is there, and they have read the slot
        request_next(ring, work, routing, share, lane);      // that is filled now
        slot = ring.read;
        WeightTile w = read_tile(ring.slots, slot, 0);
#pragma unroll
        for (int i = 0; i < STAGE_TILES; ++i) {
            const int tile = stage * STAGE_TILES + i;
            if (COLUMN_TILES % STAGE_TILES != 0 && tile >= COLUMN_TILES) continue;
            const WeightTile now = w;
            if (i + 1 < STAGE_TILES) w = read_tile(ring.slots, slot, i + 1);
            multiply_tile<NB>(acc, now, x[i % AHEAD]);
            if (i % AHEAD != AHEAD - 1) continue;
            // the next ones together: they share a counter, so that each wait is for all
#pragma unroll
            for (int j = 0; j < AHEAD; ++j)
                if (tile + 1 + j < COLUMN_TILES) load_rows<NB>(x[j], rows, tile + 1 + j, lane);
        }
        ring.read = next_slot(ring.read);
    }
    return read_row_scales(ring.slots, slot, lane);
}

#endif

#if ENTRY == 0

// One item for the up to 8 * NB rows of its unit.
template <int NB>
__device__ __forceinline__ void do_item(u16* __restrict__ inner, u16* __restrict__ dense_inner,
                                        const u16* x, const u16* dense_x, const Place& at,
                                        int count, Ring& ring, const Work& work,
                                        const Routing& routing, const Share& share, int lane) {
    const int g = lane >> 2, t = lane & 3, width = work.num_row_tiles * 8;
    const bool dense = at.unit < DENSE;
    const u16* rows[NB];
#pragma unroll
    for (int m = 0; m < NB; ++m) {
        // a column without a row has any other's: nobody reads what comes of it
        const u32 row = row_of(routing, at.unit, min(8 * m + g, count - 1));
        rows[m] = (dense ? dense_x + row * COLUMNS : x + row / CHOSEN * COLUMNS) + 8 * t;
    }
    float acc[2][NB][4] = {};
    const float2 scale = multiply_item<NB>(acc, ring, rows, work, routing, share, lane);
#pragma unroll
    for (int m = 0; m < NB; ++m) {
#pragma unroll
        for (int parity = 0; parity < 2; ++parity) {
            const int n = 8 * m + 2 * t + parity;
            if (n >= count) continue;
            const float gate = (acc[0][m][parity] + acc[1][m][parity]) * scale.x;
            const float up = (acc[0][m][2 + parity] + acc[1][m][2 + parity]) * scale.y;
            const u16 value = to_bf16(gelu_tanh(rounded_to_bf16(gate)) * rounded_to_bf16(up));
            const u32 number = row_of(routing, at.unit, n), column = at.tile * 8 + g;
            if (dense) dense_inner[(number * DENSE + at.unit) * width + column] = value;
            else inner[number * width + column] = value;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
moe_nvfp4_gate_up(u16* __restrict__ inner, u16* __restrict__ dense_inner, const u16* x,
                  const u16* dense_x, const int* expert_ids, const uint4* __restrict__ codes,
                  const u32* __restrict__ scales, const float* __restrict__ row_scales,
                  const uint4* __restrict__ dense_codes, const u32* __restrict__ dense_scales,
                  const float* __restrict__ dense_row_scales, int num_pairs, int num_row_tiles) {
    __shared__ Routing routing;
    const int lane = threadIdx.x % WARP;
    const Work work = {{codes, scales, row_scales}, {dense_codes, dense_scales, dense_row_scales},
                       num_row_tiles, num_pairs / CHOSEN};
    Share share;
    find_dense(share, num_row_tiles);
    int item = first_item(), requested = 0;
    Ring ring = {slots_of(threadIdx.x / WARP, lane), 0, 0, item, 0, {}};
    constexpr int EARLY = STAGES - 1 < ITEM_STAGES ? STAGES - 1 : ITEM_STAGES;
    share.num_items = share.num_dense;
    if (item < share.num_dense) {
        ring.from = source_of(work, routing, place_of(share, item, num_row_tiles), lane);
        for (; requested < EARLY; ++requested)
            request_next(ring, work, routing, share, lane);
    }
    clear_routing(routing, THREADS);
    wait_for_previous_kernel();
    allow_next_kernel();         // not before: moe_nvfp4_down reads the routing without a wait
    // warps that keep step with one another would all wait for each line of a few rows
    for (int i = threadIdx.x; i < min(work.num_tokens, 2) * (COLUMNS / 64); i += THREADS) {
        load_activation_word(x + i * 64);
        if (DENSE) load_activation_word(dense_x + i * 64);
    }
    read_routing(routing, expert_ids, num_pairs, THREADS);
    find_experts(share, num_row_tiles, routing.num_hit);
    if (requested == 0 && item < share.num_items)
        ring.from = source_of(work, routing, place_of(share, item, num_row_tiles), lane);
    for (; requested < STAGES - 1; ++requested)
        request_next(ring, work, routing, share, lane);
    for (; item < share.num_items; item += WARPS) {
        const Place at = place_of(share, item, num_row_tiles);
        const int count = num_rows(work, routing, at.unit);
#if BLOCKS == 2
        if (count > 8)
            do_item<2>(inner, dense_inner, x, dense_x, at, count, ring, work, routing, share, lane);
        else
#endif
            do_item<1>(inner, dense_inner, x, dense_x, at, count, ring, work, routing, share, lane);
    }
}

#elif ENTRY == 1

// One item for the up to 8 * NB rows of its unit.
template <int NB>
__device__ __forceinline__ void do_item(u16* __restrict__ results, float* __restrict__ dense_parts,
                                        const u16* inner, const u16* dense_inner, const Place& at,
                                        int count, int num_outputs, Ring& ring, const Work& work,
                                        const Routing& routing, const Share& share, int lane) {
    const int g = lane >> 2, t = lane & 3;
    const bool dense = at.unit < DENSE;
    const u16* rows[NB];
#pragma unroll
    for (int m = 0; m < NB; ++m) {
        // a column without a row has any other's: nobody reads what comes of it
        const u32 row = row_of(routing, at.unit, min(8 * m + g, count - 1));
        rows[m] = (dense ? dense_inner + (row * DENSE + at.unit) * COLUMNS
                         : inner + row * COLUMNS) + 8 * t;
    }
    float acc[2][NB][4] = {};
    const float2 scale = multiply_item<NB>(acc, ring, rows, work, routing, share, lane);
#pragma unroll
    for (int m = 0; m < NB; ++m) {
#pragma unroll
        for (int parity = 0; parity < 2; ++parity) {
            const int n = 8 * m + 2 * t + parity;
            if (n >= count) continue;
            const u32 number = row_of(routing, at.unit, n);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = at.tile * TILE_ROWS + g + 8 * half, j = 2 * half + parity;
                const float value = (acc[0][m][j] + acc[1][m][j]) * (half ? scale.y : scale.x);
                if (row >= num_outputs) continue;
                if (dense) dense_parts[(number * DENSE + at.unit) * num_outputs + row] = value;
                else results[number * num_outputs + row] = to_bf16(value);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
moe_nvfp4_down(u16* __restrict__ results, float* __restrict__ dense_parts, const u16* inner,
               const u16* dense_inner, const int* expert_ids, const uint4* __restrict__ codes,
               const u32* __restrict__ scales, const float* __restrict__ row_scales,
               const uint4* __restrict__ dense_codes, const u32* __restrict__ dense_scales,
               const float* __restrict__ dense_row_scales, int num_pairs, int num_row_tiles,
               int num_outputs) {
    __shared__ Routing routing;
    const int lane = threadIdx.x % WARP;
    const Work work = {{codes, scales, row_scales}, {dense_codes, dense_scales, dense_row_scales},
                       num_row_tiles, num_pairs / CHOSEN};
    allow_next_kernel();
    // gate_up let this launch begin after its own wait: the routing is complete, inner is not
    clear_routing(routing, THREADS);
    read_routing(routing, expert_ids, num_pairs, THREADS);
    Share share;
    find_dense(share, num_row_tiles);
    find_experts(share, num_row_tiles, routing.num_hit);
    int item = first_item();
    if (item >= share.num_items) return;
    Ring ring = {slots_of(threadIdx.x / WARP, lane), 0, 0, item, 0, {}};
    ring.from = source_of(work, routing, place_of(share, item, num_row_tiles), lane);
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i)
        request_next(ring, work, routing, share, lane);
    wait_for_previous_kernel();
    for (; item < share.num_items; item += WARPS) {
        const Place at = place_of(share, item, num_row_tiles);
        const int count = num_rows(work, routing, at.unit);
#if BLOCKS == 2
        if (count > 8)
            do_item<2>(results, dense_parts, inner, dense_inner, at, count, num_outputs, ring,
                       work, routing, share, lane);
        else
#endif
            do_item<1>(results, dense_parts, inner, dense_inner, at, count, num_outputs, ring,
                       work, routing, share, lane);
    }
}

#else

extern "C" __global__ void __launch_bounds__(256)
moe_nvfp4_combine(float2* __restrict__ out, const u32* results, const int* expert_ids,
                  const float* expert_weights, int num_pairs_of_columns) {
    int token = blockIdx.y, column = blockIdx.x * 256 + threadIdx.x;
    allow_next_kernel();
    wait_for_previous_kernel();
    if (column >= num_pairs_of_columns) return;
    float2 sum = make_float2(0.0f, 0.0f);
    for (int k = 0; k < CHOSEN; ++k) {
        int pair = token * CHOSEN + k;
        if ((int)load_activation_word(expert_ids + pair) < 0) continue;
        float weight = __uint_as_float(load_activation_word(expert_weights + pair));
        u32 both = load_activation_word(results + (u64)pair * num_pairs_of_columns + column);
        // product and sum round apart, as in the twin
        sum.x = __fadd_rn(sum.x, __fmul_rn(weight, from_bf16((u16)both)));
        sum.y = __fadd_rn(sum.y, __fmul_rn(weight, from_bf16((u16)(both >> 16))));
    }
    out[(u64)token * num_pairs_of_columns + column] = sum;
}

#endif
