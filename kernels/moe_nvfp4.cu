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
// An item is one row tile of one distinct expert, and a warp's, or that of a pair of warps with half
// of the columns each (SPLIT): so there are enough for all warps at one row, and the last ones of
// many take half as long. Its lanes hold gate and up of the same numbers. The rows of an expert are
// the columns of one matrix instruction (of two for more than 8), so its weights are read once.
// Blocks that just fill the device share the work evenly, each a run of neighbouring items, so that
// its warps read the same rows of activations at about the same time; items of more than 8 rows
// count as WIDE, others as NARROW. Weights come through a ring of shared memory (weight_ring.cuh)
// that runs on across items.
// moe_nvfp4_down must come right behind moe_nvfp4_gate_up. A row's sums never depend on who shares
// its experts or on the grid; combine adds best expert first.
//
// With DENSE the launches do a layer's dense MLP too, whose matrices have H and DENSE * I columns:
//   gate_up  dense_inner = gelu_tanh(bf16(G x')) * bf16(U x'), x' (T, H) bf16
//   down     dense_parts[:, j] = D[:, j I ..] dense_inner[:, j I ..], j < DENSE; (T, DENSE, H) f32,
//            to be added in order and rounded by who reads them
// A block's share of it comes first: gate_up's needs no routing, so that its weights are requested
// before the wait, and all of them fetched into the L2 (FETCH_DENSE).
//
// PRECOND: at most 16 tokens and 128 pairs; a token's expert ids differ; H and I multiples of 8.
// PRECOND (DENSE): I a multiple of 64
// Constants: ENTRY (0 gate_up, 1 down, 2 combine), CHOSEN (K); 0 and 1: COLUMNS, COLUMN_TILES,
// BLOCKS (8 tokens or fewer: 1, else 2), NUM_EXPERTS (E), DENSE (0: no dense MLP), WARPS,
// MIN_BLOCKS, SPLIT (warps of an item: 1, or 2 where COLUMNS is a multiple of 128), STAGE_TILES and
// STAGES of the ring, ACTIVATIONS and WIDE_ACTIVATIONS (tiles of them in flight for up to 8 and for
// more rows, divisors of STAGE_TILES), WIDE, NARROW; 0 also FETCH_DENSE. Dynamic shared memory: the
// rings.

#if ENTRY != 2

#include "expert_items.cuh"

#endif

#if ENTRY == 0

__device__ __forceinline__ void fetch_line(const void* p) {
    asm volatile("prefetch.global.L2 [%0];" :: "l"(p));
}

// What the block's items of the dense MLP read comes into the L2: nothing else can be read yet.
__device__ __forceinline__ void fetch_dense(const Work& work, const Share& share) {
    const char* codes = (const char*)(work.dense.codes
                                      + share.first_dense * COLUMN_TILES * TILE_CODE_VECTORS);
    const char* scales = (const char*)(work.dense.scales
                                       + share.first_dense * COLUMN_TILES * TILE_SCALE_WORDS);
    const int num_tiles = share.num_dense * COLUMN_TILES;
    for (int i = threadIdx.x; i < num_tiles * (TILE_CODE_VECTORS / 8); i += THREADS)
        fetch_line(codes + i * 128);
    for (int i = threadIdx.x; i < num_tiles * TILE_SCALE_WORDS / 32; i += THREADS)
        fetch_line(scales + i * 128);
}

// One item for the up to 8 * NB rows of its unit.
template <int NB>
__device__ __forceinline__ void do_item(u16* __restrict__ inner, u16* __restrict__ dense_inner,
                                        const u16* x, const u16* dense_x, const Place& at,
                                        int count, Halves& halves, Ring& ring, const Work& work,
                                        const Routing& routing, const Share& share, int lane) {
    const int g = lane >> 2, width = work.num_row_tiles * 8;
    const bool dense = at.unit < DENSE;
    const u16* rows[NB];
#pragma unroll
    for (int m = 0; m < NB; ++m) {
        // a column without a row has any other's: nobody reads what comes of it
        const u32 row = row_of(routing, at.unit, min(8 * m + g, count - 1));
        rows[m] = (dense ? dense_x + row * COLUMNS : x + row / CHOSEN * COLUMNS)
            + first_column(lane);
    }
    const Totals<NB> total = multiply_item<NB>(halves, ring, rows, work, routing, share, lane);
#pragma unroll
    for (int m = 0; m < NB; ++m) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const int n = row_of_sum(m, i, lane);
            if (n >= count) continue;
            const float gate = total.of[m][i].x * total.scale.x;
            const float up = total.of[m][i].y * total.scale.y;
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
    SHARED_HALVES;
    const int lane = threadIdx.x % WARP;
    const Work work = {{codes, scales, row_scales}, {dense_codes, dense_scales, dense_row_scales},
                       num_row_tiles, num_pairs / CHOSEN};
    Share share;
    find_dense(share, num_row_tiles);
    int item = first_item(), requested = 0;
    Ring ring = {slots_of(threadIdx.x / WARP, lane), 0, 0, item, 0, {}, 0};
    constexpr int EARLY = STAGES - 1 < ITEM_STAGES ? STAGES - 1 : ITEM_STAGES;
    share.num_items = share.num_dense;
    if (item < share.num_dense) {
        ring.from = source_of(work, routing, place_of(share, item, num_row_tiles), lane);
        for (; requested < EARLY; ++requested)
            request_next(ring, work, routing, share, lane);
    }
#if FETCH_DENSE
    fetch_dense(work, share);
#endif
    clear_routing(routing, THREADS);
    wait_for_previous_kernel();
    allow_next_kernel();         // not before: moe_nvfp4_down reads the routing without a wait
    read_routing(routing, expert_ids, num_pairs, THREADS);
    find_experts(share, work, routing);
    if (requested == 0 && item < share.num_items)
        ring.from = source_of(work, routing, place_of(share, item, num_row_tiles), lane);
    for (; requested < STAGES - 1; ++requested)
        request_next(ring, work, routing, share, lane);
    for (; item < share.num_items; item = next_item(share, item)) {
        const Place at = place_of(share, item, num_row_tiles);
        const int count = num_rows(work, routing, at.unit);
#if BLOCKS == 2
        if (count > 8)
            do_item<2>(inner, dense_inner, x, dense_x, at, count, halves, ring, work, routing,
                       share, lane);
        else
#endif
            do_item<1>(inner, dense_inner, x, dense_x, at, count, halves, ring, work, routing,
                       share, lane);
    }
}

#elif ENTRY == 1

// One item for the up to 8 * NB rows of its unit.
template <int NB>
__device__ __forceinline__ void do_item(u16* __restrict__ results, float* __restrict__ dense_parts,
                                        const u16* inner, const u16* dense_inner,
                                        const Place& at, int count, int num_outputs,
                                        Halves& halves, Ring& ring, const Work& work,
                                        const Routing& routing, const Share& share, int lane) {
    const int g = lane >> 2;
    const bool dense = at.unit < DENSE;
    const u16* rows[NB];
#pragma unroll
    for (int m = 0; m < NB; ++m) {
        // a column without a row has any other's: nobody reads what comes of it
        const u32 row = row_of(routing, at.unit, min(8 * m + g, count - 1));
        rows[m] = (dense ? dense_inner + (row * DENSE + at.unit) * COLUMNS
                         : inner + row * COLUMNS) + first_column(lane);
    }
    const Totals<NB> total = multiply_item<NB>(halves, ring, rows, work, routing, share, lane);
#pragma unroll
    for (int m = 0; m < NB; ++m) {
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const int n = row_of_sum(m, i, lane);
            if (n >= count) continue;
            const u32 number = row_of(routing, at.unit, n);
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int row = at.tile * TILE_ROWS + g + 8 * half;
                const float value = half ? total.of[m][i].y * total.scale.y
                                         : total.of[m][i].x * total.scale.x;
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
    SHARED_HALVES;
    const int lane = threadIdx.x % WARP;
    const Work work = {{codes, scales, row_scales}, {dense_codes, dense_scales, dense_row_scales},
                       num_row_tiles, num_pairs / CHOSEN};
    allow_next_kernel();
    // gate_up let this launch begin after its own wait: the routing is complete, inner is not
    clear_routing(routing, THREADS);
    read_routing(routing, expert_ids, num_pairs, THREADS);
    Share share;
    find_dense(share, num_row_tiles);
    find_experts(share, work, routing);
    int item = first_item();
    if (item >= share.num_items) return;
    Ring ring = {slots_of(threadIdx.x / WARP, lane), 0, 0, item, 0, {}, 0};
    ring.from = source_of(work, routing, place_of(share, item, num_row_tiles), lane);
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i)
        request_next(ring, work, routing, share, lane);
    wait_for_previous_kernel();
    for (; item < share.num_items; item = next_item(share, item)) {
        const Place at = place_of(share, item, num_row_tiles);
        const int count = num_rows(work, routing, at.unit);
#if BLOCKS == 2
        if (count > 8)
            do_item<2>(results, dense_parts, inner, dense_inner, at, count, num_outputs, halves,
                       ring, work, routing, share, lane);
        else
#endif
            do_item<1>(results, dense_parts, inner, dense_inner, at, count, num_outputs, halves,
                       ring, work, routing, share, lane);
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
