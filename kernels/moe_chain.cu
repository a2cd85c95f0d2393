// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// moe_chain: moe_nvfp4_gate_up and moe_nvfp4_down (moe_nvfp4.cu) in one launch, with a layer's
// dense MLP as there.
//
// Bytes moved and what bounds it: as the two. Between two launches nothing is read for about 3 us;
// here a warp's ring runs on from its last item of gate-up into its first ones of down, whose
// weights are known as soon as the routing is. Only down's products wait, and each for its own unit
// (part of the dense MLP, or expert) alone: `arrivals` counts a unit's warps of gate-up that are
// done (arrivals.cuh). Items, shares of blocks, sums and their order are those of the two launches.
//
// arrivals (DENSE + most distinct experts) counters of u32, ARRIVALS_APART words apart, zero.
//
// PRECOND: those of moe_nvfp4.cu; all blocks are resident at once. (The next kernel begins only when
// all of them have begun, so it takes no place from one.)
// Constants: CHOSEN, NUM_EXPERTS, BLOCKS, DENSE, WARPS, MIN_BLOCKS, STAGE_TILES, STAGES, ONE_BODY,
// FETCH_DENSE and E2M1_HARDWARE as in moe_nvfp4.cu; COLUMNS, COLUMN_TILES, SPLIT, ACTIVATIONS,
// WIDE_ACTIVATIONS, WIDE and NARROW are gate-up's, those with DOWN_ in front down's, which has a
// warp an item.
// Dynamic shared memory: the rings.

#include "expert_results.cuh"
#include "arrivals.cuh"

typedef Product<false, COLUMNS, SPLIT, ACTIVATIONS, WIDE_ACTIVATIONS, WIDE, NARROW> GateUp;
typedef Product<true, DOWN_COLUMNS, 1, DOWN_ACTIVATIONS, DOWN_WIDE_ACTIVATIONS, DOWN_WIDE,
                DOWN_NARROW> Down;

struct Chain {
    Job<GateUp> gate_up;
    Job<Down> down;
};

// The ring's next item: gate-up's, or the first of down's behind the last of them.
__device__ __forceinline__ void begin_next(Ring& ring, const Chain& chain,
                                           const Routing& routing, int lane) {
    if (!ring.down) {
        ring.item = next_item<GateUp>(chain.gate_up.share, ring.item);
        begin_item(ring, chain.gate_up, routing, lane);
        if (ring.left > 0) return;
        ring.down = true;
        ring.item = first_item<Down>();
        begin_item(ring, chain.down, routing, lane);
        return;
    }
    begin_next(ring, chain.down, routing, lane);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
moe_chain(u16* results, float* dense_parts, u16* inner, u16* dense_inner, u32* arrivals,
          const u16* x, const u16* dense_x, const int* expert_ids,
          const uint4* __restrict__ codes, const u32* __restrict__ scales,
          const float* __restrict__ row_scales, const uint4* __restrict__ dense_codes,
          const u32* __restrict__ dense_scales, const float* __restrict__ dense_row_scales,
          const uint4* __restrict__ down_codes, const u32* __restrict__ down_scales,
          const float* __restrict__ down_row_scales, const uint4* __restrict__ dense_down_codes,
          const u32* __restrict__ dense_down_scales,
          const float* __restrict__ dense_down_row_scales, int num_pairs, int num_row_tiles,
          int num_down_tiles, int num_outputs) {
    __shared__ Routing routing;
    SHARED_HALVES;
    const int lane = threadIdx.x % WARP;
    Chain chain = {
        {{{codes, scales, row_scales}, {dense_codes, dense_scales, dense_row_scales},
          num_row_tiles, num_pairs / CHOSEN}, {}},
        {{{down_codes, down_scales, down_row_scales},
          {dense_down_codes, dense_down_scales, dense_down_row_scales}, num_down_tiles,
          num_pairs / CHOSEN}, {}}};
    Share& share = chain.gate_up.share;
    find_dense(share, num_row_tiles);
    share.num_items = share.num_dense;
    int item = first_item<GateUp>(), requested = 0;
    Ring ring = {slots_of(threadIdx.x / WARP, lane), 0, 0, item, 0, {}, 0, false};
    constexpr int OWN_STAGES = (GateUp::item_tiles + STAGE_TILES - 1) / STAGE_TILES;
    constexpr int EARLY = STAGES - 1 < OWN_STAGES ? STAGES - 1 : OWN_STAGES;
    begin_item(ring, chain.gate_up, routing, lane);
    if (ring.left > 0)
        for (; requested < EARLY; ++requested)
            request_next(ring, chain.gate_up, routing, lane);
#if FETCH_DENSE
    fetch_dense<GateUp>(chain.gate_up);
#endif
    clear_routing(routing, THREADS);
    wait_for_previous_kernel();
    allow_next_kernel();
    read_routing(routing, expert_ids, num_pairs, THREADS);
    find_experts<GateUp>(share, chain.gate_up.work, routing.num_hit, routing.num_wide);
    find_dense(chain.down.share, num_down_tiles);
    find_experts<Down>(chain.down.share, chain.down.work, routing.num_hit, routing.num_wide);
    if (requested == 0) {
        ring.down = item >= share.num_items;
        if (ring.down) ring.item = first_item<Down>();
        if (ring.down) begin_item(ring, chain.down, routing, lane);
        else begin_item(ring, chain.gate_up, routing, lane);
    }
    for (; requested < STAGES - 1; ++requested) request_next(ring, chain, routing, lane);

    const GateUpRows first = {inner, dense_inner, x, dense_x};
    for (int done = 0; item < share.num_items;) {
        const Place at = place_of(chain.gate_up, item);
        const int count = num_rows(chain.gate_up.work, routing, at.unit);
        if (BLOCKS == 2 && count > 8)
            gate_up_item<GateUp, BLOCKS>(first, at, count, num_row_tiles, halves, ring, chain,
                                         routing, lane);
        else
            gate_up_item<GateUp, 1>(first, at, count, num_row_tiles, halves, ring, chain, routing,
                                    lane);
        item = next_item<GateUp>(share, item);
        ++done;
        // together with the next ones of the same unit: each time waits for what was written
        if (item < share.num_items && place_of(chain.gate_up, item).unit == at.unit) continue;
        add_arrivals(arrivals + at.unit * ARRIVALS_APART, done);
        done = 0;
    }

    const DownRows second = {results, dense_parts, inner, dense_inner, num_outputs};
    const u32 all = num_row_tiles * SPLIT, last = all + num_down_tiles - 1;
    NoHalves none;
    int ready = -1;
    for (item = first_item<Down>(); item < chain.down.share.num_items;
         item = next_item<Down>(chain.down.share, item)) {
        const Place at = place_of(chain.down, item);
        const int count = num_rows(chain.down.work, routing, at.unit);
        u32* counter = arrivals + at.unit * ARRIVALS_APART;
        if (at.unit != ready) wait_for_arrivals(counter, all);
        ready = at.unit;
        pass_arrivals(counter, last);
        if (BLOCKS == 2 && count > 8)
            down_item<Down, BLOCKS>(second, at, count, none, ring, chain.down, routing, lane);
        else
            down_item<Down, 1>(second, at, count, none, ring, chain.down, routing, lane);
    }
}
