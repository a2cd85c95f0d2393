// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// How the work of the experts' launches is divided: items, blocks' shares of them, teams of warps.
//
// Constants: CHOSEN, NUM_EXPERTS, BLOCKS, DENSE, WARPS and MIN_BLOCKS of moe_nvfp4.cu.

#include "expert_routing.cuh"

#define THREADS (WARPS * WARP)

// One of the experts' two products. ITEM_WARPS: that do an item together, each with as many of the
// columns; AHEAD and WIDE_AHEAD: tiles of activations in flight for up to 8 and for more rows;
// WIDE_COST, NARROW_COST: what an item of more than 8 rows counts as, and one of fewer.
template <bool IS_DOWN, int NUM_COLUMNS, int ITEM_WARPS, int AHEAD, int WIDE_AHEAD, int WIDE_COST,
          int NARROW_COST>
struct Product {
    static constexpr bool down = IS_DOWN;
    static constexpr int columns = NUM_COLUMNS, split = ITEM_WARPS, teams = WARPS / ITEM_WARPS;
    static constexpr int column_tiles = (NUM_COLUMNS + TILE_COLUMNS - 1) / TILE_COLUMNS;
    static constexpr int item_tiles = column_tiles / ITEM_WARPS;
    static constexpr int ahead = AHEAD, wide_ahead = WIDE_AHEAD;
    static constexpr int wide = WIDE_COST, narrow = NARROW_COST;
};

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

// The first of the experts' items that begins at this weight of them or behind it.
template <class Part>
__device__ __forceinline__ int item_at(int weight, int num_wide) {
    const int narrow = weight - Part::wide * num_wide;
    return narrow <= 0 ? (weight + Part::wide - 1) / Part::wide
                       : num_wide + (narrow + Part::narrow - 1) / Part::narrow;
}

// Behind find_dense. So many experts that all blocks have as much work in all, but for an item;
// where there are few, all as much of the experts. Each item is one block's. experts_hit, wide_hit:
// distinct experts, and those of more than 8 rows.
template <class Part>
__device__ __forceinline__ void find_experts(Share& share, const Work& work, int experts_hit,
                                             int wide_hit) {
    const int tiles = work.num_row_tiles;
    const int per_dense = work.num_tokens > 8 ? Part::wide : Part::narrow;
    const int num_wide = BLOCKS == 1 ? 0 : wide_hit * tiles;
    const int experts = (Part::wide - Part::narrow) * num_wide
        + Part::narrow * tiles * experts_hit;
    const int dense = per_dense * DENSE * tiles;
    int begin, end;
    // else a block may have more of the dense MLP than its share, and a later one begin earlier
    if (DENSE == 0 || experts >= per_dense * (int)gridDim.x) {
        begin = part_of(dense + experts, blockIdx.x) - per_dense * share.first_dense;
        end = part_of(dense + experts, blockIdx.x + 1)
            - per_dense * (share.first_dense + share.num_dense);
    } else {
        begin = part_of(experts, blockIdx.x);
        end = part_of(experts, blockIdx.x + 1);
    }
    share.first_expert = item_at<Part>(begin, num_wide);
    // a step of padding alone hits none: what the division leaves over is no item then
    const int last = min(item_at<Part>(end, num_wide), tiles * experts_hit);
    share.num_items = share.num_dense + max(last - share.first_expert, 0);
}

__device__ __forceinline__ Place place_of(const Share& share, int item, int num_row_tiles) {
    const bool dense = item < share.num_dense;
    const int number = item + (dense ? share.first_dense : share.first_expert - share.num_dense);
    // exact: a half off any border, and far fewer than 2^20 items
    const int unit = (int)(((float)number + 0.5f) * share.per_unit);
    return {unit + (dense ? 0 : DENSE), number - unit * num_row_tiles};
}

// A team's first item. Neighbours in a block go to different schedulers, and the blocks of a
// multiprocessor begin at different ones.
template <class Part>
__device__ __forceinline__ int first_item() {
    const u32 turn = blockIdx.x * MIN_BLOCKS / gridDim.x;
    return (threadIdx.x / (WARP * Part::split) + turn * (Part::teams / 2 + 1)) % Part::teams;
}

// A team's next item. Who began with one of the dense MLP comes last in the rounds behind the first,
// so that a round which is not full leaves it out.
template <class Part>
__device__ __forceinline__ int next_item(const Share& share, int item) {
    constexpr int teams = Part::teams;
    const int skipped = share.num_dense <= teams ? share.num_dense : 0;
    if (Part::down || item >= teams) return item + teams;        // down's are of one length
    return item + teams - skipped + (item < skipped ? teams : 0);
}

// Which of its team this warp is, and so which part of the columns it has.
template <class Part>
__device__ __forceinline__ int part_of_team() { return threadIdx.x / WARP % Part::split; }

// Rows that a unit has, and the n-th one's token or pair.
__device__ __forceinline__ int num_rows(const Work& work, const Routing& routing, int unit) {
    if (unit < DENSE) return work.num_tokens;
    return routing.count[unit - DENSE];
}

__device__ __forceinline__ int row_of(const Routing& routing, int unit, int n) {
    return unit < DENSE ? n : routing.pairs[routing.first[unit - DENSE] + n];
}
