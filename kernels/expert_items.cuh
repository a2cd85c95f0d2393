// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// One item of the experts' launches: its weights through a warp's ring, times rows of activations;
// and what the warps of a pair add up.
//
// Constants: those of moe_nvfp4.cu.

#define ITEM_TILES (COLUMN_TILES / SPLIT)

#include "expert_work.cuh"
#include "weight_ring.cuh"

__device__ __forceinline__ Source source_of(const Work& work, const Routing& routing,
                                            const Place& at, int lane) {
    const bool dense = at.unit < DENSE;
    // one by one: a reference to either puts both into memory
    const uint4* codes = dense ? work.dense.codes : work.experts.codes;
    const u32* scales = dense ? work.dense.scales : work.experts.scales;
    const float* row_scales = dense ? work.dense.row_scales : work.experts.row_scales;
    const u32 part = part_of_team() * ITEM_TILES;
    if (ENTRY == 1 && dense)             // a part of each row
        return source_at(codes, scales, row_scales,
                         (u32)(at.tile * DENSE + at.unit) * COLUMN_TILES + part, at.tile, lane);
    const u32 matrix = dense ? at.unit : routing.hit[at.unit - DENSE];
    const u32 row_tile = matrix * work.num_row_tiles + at.tile;
    return source_at(codes, scales, row_scales, row_tile * COLUMN_TILES + part, row_tile, lane);
}

// One warp's ring, and what it requests next.
struct Ring {
    Slots slots;
    u32 read, filled;            // the slots that are read and filled next
    int item, stage;             // of what is requested next; ITEM_STAGES: the next item's first
    Source from;
    int turn;                    // of the pair
};

__device__ __forceinline__ void request_next(Ring& ring, const Work& work, const Routing& routing,
                                             const Share& share, int lane) {
    if (ring.stage == ITEM_STAGES) {
        ring.stage = 0;
        ring.item = next_item(share, ring.item);
        if (ring.item < share.num_items)
            ring.from = source_of(work, routing, place_of(share, ring.item, work.num_row_tiles),
                                  lane);
    }
    if (ring.item < share.num_items)
        request_stage(ring.slots, ring.filled, ring.from, ring.stage++, lane);
    commit_copies();
    ring.filled = next_slot(ring.filled);
}

// Where this lane's part of a row of activations begins.
__device__ __forceinline__ int first_column(int lane) {
    return part_of_team() * ITEM_TILES * TILE_COLUMNS + 8 * (lane & 3);
}

// This lane's part of a tile of activations.
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

// The products of one stage, of TILES tiles, with what is requested meanwhile.
template <int NB, int TILES, int AHEAD>
__device__ __forceinline__ void multiply_stage(float (&acc)[2][NB][4],
                                               ActivationTile (&x)[AHEAD][NB], int first,
                                               const Ring& ring, const u16* const (&rows)[NB],
                                               int lane) {
    WeightTile w = read_tile(ring.slots, ring.read, 0);
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
        const WeightTile now = w;
        if (i + 1 < TILES) w = read_tile(ring.slots, ring.read, i + 1);
        multiply_tile<NB>(acc, now, x[i % AHEAD]);
        if (i % AHEAD != AHEAD - 1) continue;
        // the next ones together: they share a counter, so that each wait is for all
#pragma unroll
        for (int j = 0; j < AHEAD; ++j)
            if (first + i + 1 + j < ITEM_TILES) load_rows<NB>(x[j], rows, first + i + 1 + j, lane);
    }
}

// Sums of rows g and g + 8 for the columns that this lane gives out: 2 t and 2 t + 1 of each block,
// or one of them, by the warp's part.
#define OWN (SPLIT == 1 ? 2 : 1)

template <int NB>
struct Totals {
    float2 of[NB][OWN];
    float2 scale;                // of rows g, and of rows g + 8
};

// What the warps of a pair give one another, by turns.
#if SPLIT == 1
struct Halves {};
#define SHARED_HALVES Halves halves
#else
typedef float2 Halves[2][WARPS][BLOCKS][WARP];
#define SHARED_HALVES __shared__ Halves halves
#endif

// A barrier of two warps.
__device__ __forceinline__ void pair_barrier(int pair) {
    asm volatile("bar.sync %0, 64;" :: "r"(1 + pair) : "memory");
}

// The next item's products with the rows at `rows`.
template <int NB>
__device__ __forceinline__ Totals<NB> multiply_item(Halves& halves, Ring& ring,
                                                    const u16* const (&rows)[NB],
                                                    const Work& work, const Routing& routing,
                                                    const Share& share, int lane) {
    constexpr int AHEAD = NB == 1 ? ACTIVATIONS : WIDE_ACTIVATIONS;
    constexpr int LAST = ITEM_TILES - (ITEM_STAGES - 1) * STAGE_TILES;
    ActivationTile x[AHEAD][NB];
    float acc[2][NB][4] = {};
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
        if (i < ITEM_TILES) load_rows<NB>(x[i], rows, i, lane);
    u32 slot = 0;
    Totals<NB> total;
#pragma unroll(ITEM_STAGES <= 3 ? 3 : 1)
    for (int stage = 0; stage < ITEM_STAGES; ++stage) {
        wait_for_copies<STAGES - 2>();
        __syncwarp();            // what other lanes copied is there, and they have read the slot
        request_next(ring, work, routing, share, lane);      // that is filled now
        slot = ring.read;
        if (LAST == STAGE_TILES || stage < ITEM_STAGES - 1)
            multiply_stage<NB, STAGE_TILES, AHEAD>(acc, x, stage * STAGE_TILES, ring, rows, lane);
        else
            multiply_stage<NB, LAST, AHEAD>(acc, x, stage * STAGE_TILES, ring, rows, lane);
        ring.read = next_slot(ring.read);
    }
    total.scale = read_row_scales(ring.slots, slot, lane);
#if SPLIT == 1
#pragma unroll
    for (int m = 0; m < NB; ++m)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            total.of[m][i] = make_float2(acc[0][m][i] + acc[1][m][i],
                                         acc[0][m][2 + i] + acc[1][m][2 + i]);
#else
    const int warp = threadIdx.x / WARP;
    const bool second = warp & 1;
    float2 (&given)[BLOCKS][WARP] = halves[ring.turn][warp];
    float2 (&taken)[BLOCKS][WARP] = halves[ring.turn][warp ^ 1];
#pragma unroll
    for (int m = 0; m < NB; ++m) {
        const float2 even = make_float2(acc[0][m][0] + acc[1][m][0], acc[0][m][2] + acc[1][m][2]);
        const float2 odd = make_float2(acc[0][m][1] + acc[1][m][1], acc[0][m][3] + acc[1][m][3]);
        given[m][lane] = second ? even : odd;
        total.of[m][0] = second ? odd : even;
    }
    pair_barrier(warp / 2);      // the other one's turn before is over, too
#pragma unroll
    for (int m = 0; m < NB; ++m) {
        const float2 other = taken[m][lane];
        total.of[m][0].x += other.x;
        total.of[m][0].y += other.y;
    }
    ring.turn ^= 1;
#endif
    return total;
}

// The n-th row of a unit whose i-th sum of block m this lane has.
__device__ __forceinline__ int row_of_sum(int m, int i, int lane) {
    return 8 * m + 2 * (lane & 3) + (SPLIT == 1 ? i : part_of_team());
}
