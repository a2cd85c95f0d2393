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
// more rows, divisors of STAGE_TILES), ONE_BODY (expert_items.cuh), WIDE, NARROW; 0 also
// FETCH_DENSE and WARM (1: rows are listed once before the wait, too, from whatever ids lie there, so
// that the instructions are at hand behind it: each line of them is waited for the first time).
// Dynamic shared memory: the rings.

#if ENTRY != 2

#include "expert_results.cuh"

typedef Product<ENTRY == 1, COLUMNS, SPLIT, ACTIVATIONS, WIDE_ACTIVATIONS, WIDE, NARROW> Part;

#endif

#if ENTRY == 0

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
moe_nvfp4_gate_up(u16* __restrict__ inner, u16* __restrict__ dense_inner, const u16* x,
                  const u16* dense_x, const int* expert_ids, const uint4* __restrict__ codes,
                  const u32* __restrict__ scales, const float* __restrict__ row_scales,
                  const uint4* __restrict__ dense_codes, const u32* __restrict__ dense_scales,
                  const float* __restrict__ dense_row_scales, int num_pairs, int num_row_tiles) {
    __shared__ Routing routing;
    SHARED_HALVES;
    const int lane = threadIdx.x % WARP;
    Job<Part> job = {{{codes, scales, row_scales}, {dense_codes, dense_scales, dense_row_scales},
                      num_row_tiles, num_pairs / CHOSEN}, {}};
    find_dense(job.share, num_row_tiles);
    job.share.num_items = job.share.num_dense;
    int item = first_item<Part>(), requested = 0;
    Ring ring = {slots_of(threadIdx.x / WARP, lane), 0, 0, item, 0, {}, 0, false};
    constexpr int OWN_STAGES = (Part::item_tiles + STAGE_TILES - 1) / STAGE_TILES;
    constexpr int EARLY = STAGES - 1 < OWN_STAGES ? STAGES - 1 : OWN_STAGES;
    begin_item(ring, job, routing, lane);
    if (ring.left > 0)
        for (; requested < EARLY; ++requested) request_next(ring, job, routing, lane);
#if FETCH_DENSE
    fetch_dense<Part>(job);
#endif
    // one row's share is known before its experts are, unless it is padding
    const bool alone = num_pairs == CHOSEN;
    if (alone) find_experts<Part>(job.share, job.work, CHOSEN, 0);
#pragma unroll 1
    for (int turn = 1 - WARM; turn < 2; ++turn) {
        clear_routing(routing, THREADS);
        if (turn == 1) {
            wait_for_previous_kernel();
            allow_next_kernel(); // not before: moe_nvfp4_down reads the routing without a wait
        }
        read_routing(routing, expert_ids, num_pairs, THREADS);
        if (!alone || routing.num_hit == 0)
            find_experts<Part>(job.share, job.work, routing.num_hit, routing.num_wide);
        if (requested == 0) begin_item(ring, job, routing, lane);
    }
    for (; requested < STAGES - 1; ++requested) request_next(ring, job, routing, lane);
    const GateUpRows to = {inner, dense_inner, x, dense_x};
    for (; item < job.share.num_items; item = next_item<Part>(job.share, item)) {
        const Place at = place_of(job, item);
        const int count = num_rows(job.work, routing, at.unit);
        if (BLOCKS == 2 && count > 8)
            gate_up_item<Part, BLOCKS>(to, at, count, num_row_tiles, halves, ring, job, routing,
                                       lane);
        else
            gate_up_item<Part, 1>(to, at, count, num_row_tiles, halves, ring, job, routing, lane);
    }
}

#elif ENTRY == 1

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
    Job<Part> job = {{{codes, scales, row_scales}, {dense_codes, dense_scales, dense_row_scales},
                      num_row_tiles, num_pairs / CHOSEN}, {}};
    allow_next_kernel();
    // gate_up let this launch begin after its own wait: the routing is complete, inner is not
    clear_routing(routing, THREADS);
    read_routing(routing, expert_ids, num_pairs, THREADS);
    find_dense(job.share, num_row_tiles);
    find_experts<Part>(job.share, job.work, routing.num_hit, routing.num_wide);
    int item = first_item<Part>();
    if (item >= job.share.num_items) return;
    Ring ring = {slots_of(threadIdx.x / WARP, lane), 0, 0, item, 0, {}, 0, true};
    begin_item(ring, job, routing, lane);
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) request_next(ring, job, routing, lane);
    wait_for_previous_kernel();
    const DownRows to = {results, dense_parts, inner, dense_inner, num_outputs};
    for (; item < job.share.num_items; item = next_item<Part>(job.share, item)) {
        const Place at = place_of(job, item);
        const int count = num_rows(job.work, routing, at.unit);
        if (BLOCKS == 2 && count > 8)
            down_item<Part, BLOCKS>(to, at, count, halves, ring, job, routing, lane);
        else
            down_item<Part, 1>(to, at, count, halves, ring, job, routing, lane);
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
