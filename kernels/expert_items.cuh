// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// One item of the experts' launches: its weights through a warp's ring, times rows of activations;
// and what the warps of a pair add up.
//
// Constants: those of expert_work.cuh, SPLIT (the most warps of an item), and ONE_BODY (1: all stages
// run the same instructions, which a launch has to wait for but once; 0: they are laid out apart).

#include "expert_work.cuh"
#include "weight_ring.cuh"

// One product, and a block's share of it.
template <class Part>
struct Job {
    Work work;
    Share share;
};

template <class Part>
__device__ __forceinline__ Place place_of(const Job<Part>& job, int item) {
    return place_of(job.share, item, job.work.num_row_tiles);
}

template <class Part>
__device__ __forceinline__ Source source_of(const Work& work, const Routing& routing,
                                            const Place& at, int lane) {
    const bool dense = at.unit < DENSE;
    // one by one: a reference to either puts both into memory
    const uint4* codes = dense ? work.dense.codes : work.experts.codes;
    const u32* scales = dense ? work.dense.scales : work.experts.scales;
    const float* row_scales = dense ? work.dense.row_scales : work.experts.row_scales;
    const u32 part = part_of_team<Part>() * Part::item_tiles;
    if (Part::down && dense)             // a part of each row
        return source_at(codes, scales, row_scales,
                         (u32)(at.tile * DENSE + at.unit) * Part::column_tiles + part, at.tile,
                         lane);
    const u32 matrix = dense ? at.unit : routing.hit[at.unit - DENSE];
    const u32 row_tile = matrix * work.num_row_tiles + at.tile;
    return source_at(codes, scales, row_scales, row_tile * Part::column_tiles + part, row_tile,
                     lane);
}

// One warp's ring, and what it requests next.
struct Ring {
    Slots slots;
    u32 read, filled;            // the slots that are read and filled next
    int item, left;              // of what is requested next; tiles of it that are left
    Source from;
    int turn;                    // of the pair
    bool down;                   // whether it is down's
};

// Begin to request the ring's item, if there is one.
template <class Part>
__device__ __forceinline__ void begin_item(Ring& ring, const Job<Part>& job,
                                           const Routing& routing, int lane) {
    if (ring.item >= job.share.num_items) return;
    ring.from = source_of<Part>(job.work, routing, place_of(job, ring.item), lane);
    ring.left = Part::item_tiles;
}

template <class Part>
__device__ __forceinline__ void begin_next(Ring& ring, const Job<Part>& job,
                                           const Routing& routing, int lane) {
    ring.item = next_item<Part>(job.share, ring.item);
    begin_item(ring, job, routing, lane);
}

// Request the item's next stage; behind its last one the next item's, as begin_next of Jobs says.
template <class Jobs>
__device__ __forceinline__ void request_next(Ring& ring, const Jobs& jobs, const Routing& routing,
                                             int lane) {
    if (ring.left <= 0) begin_next(ring, jobs, routing, lane);
    if (ring.left > 0) {
        const SharedAddress to = ring.slots.vectors + ring.filled;
#pragma unroll
        for (int i = 0; i < STAGE_TILES; ++i)
            if (i < ring.left)
                copy_weights(to + i * WARP * 16, ring.from.codes + i * TILE_CODE_VECTORS);
        if (lane < TILE_SCALE_WORDS / 4 * min(ring.left, STAGE_TILES))
            copy_weights(to + STAGE_SCALES, ring.from.scales);
        if (ring.left <= STAGE_TILES && lane == WARP - 1)
            copy_pair(to + STAGE_ROW_SCALES - 16 * (WARP - 1), ring.from.row_scales);
        ring.from.codes += STAGE_TILES * TILE_CODE_VECTORS;
        ring.from.scales += STAGE_TILES * (TILE_SCALE_WORDS / 4);
        ring.left -= STAGE_TILES;
    }
    commit_copies();
    ring.filled = next_slot(ring.filled);
}

// Where this lane's part of a row of activations begins.
template <class Part>
__device__ __forceinline__ int first_column(int lane) {
    return part_of_team<Part>() * Part::item_tiles * TILE_COLUMNS + 8 * (lane & 3);
}

// This lane's part of a tile of activations.
template <class Part, int NB>
__device__ __forceinline__ void load_rows(ActivationTile (&x)[NB], const u16* const (&rows)[NB],
                                          int tile, int lane) {
    if constexpr (Part::columns % TILE_COLUMNS == 0) {
#pragma unroll
        for (int m = 0; m < NB; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                x[m].half[h] = load_activations(rows[m] + tile * TILE_COLUMNS + 32 * h);
    } else {
        load_activation_tile<NB>(x, rows, lane & 3, tile, Part::columns);
    }
}

// The products of one stage, of TILES tiles, with what is requested meanwhile.
template <class Part, int NB, int TILES, int AHEAD>
__device__ __forceinline__ void multiply_stage(float (&acc)[2][NB][4],
                                               ActivationTile (&x)[AHEAD][NB], int first,
                                               const Ring& ring, const u16* const (&rows)[NB],
                                               int lane) {
    WeightTile w = read_tile(ring.slots, ring.read, 0);
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
        if (ONE_BODY && i >= (Part::item_tiles - 1) % STAGE_TILES + 1
            && first + i >= Part::item_tiles) break;
        const WeightTile now = w;
        if (i + 1 < TILES) w = read_tile(ring.slots, ring.read, i + 1);
        multiply_tile<NB>(acc, now, x[i % AHEAD]);
        if (i % AHEAD != AHEAD - 1) continue;
        // the next ones together: they share a counter, so that each wait is for all
#pragma unroll
        for (int j = 0; j < AHEAD; ++j)
            if (first + i + 1 + j < Part::item_tiles)
                load_rows<Part, NB>(x[j], rows, first + i + 1 + j, lane);
    }
}

// Sums of rows g and g + 8 for the columns that this lane gives out: 2 t and 2 t + 1 of each block,
// or one of them, by the warp's part.
template <class Part, int NB>
struct Totals {
    static constexpr int own = Part::split == 1 ? 2 : 1;
    float2 of[NB][own];
    float2 scale;                // of rows g, and of rows g + 8
};

// What the warps of a pair give one another, by turns.
struct NoHalves {};

#if SPLIT == 1
typedef NoHalves Halves;
#define SHARED_HALVES Halves halves
#else
struct Halves {
    float2 of[2][WARPS][BLOCKS][WARP];
};
#define SHARED_HALVES __shared__ Halves halves
#endif

// A barrier of two warps.
__device__ __forceinline__ void pair_barrier(int pair) {
    asm volatile("bar.sync %0, 64;" :: "r"(1 + pair) : "memory");
}

// The next item's products with the rows at `rows`.
template <class Part, int NB, class Room, class Jobs>
__device__ __forceinline__ Totals<Part, NB> multiply_item(Room& halves, Ring& ring,
                                                          const u16* const (&rows)[NB],
                                                          const Jobs& jobs, const Routing& routing,
                                                          int lane) {
    constexpr int AHEAD = NB == 1 ? Part::ahead : Part::wide_ahead;
    constexpr int NUM_STAGES = (Part::item_tiles + STAGE_TILES - 1) / STAGE_TILES;
    constexpr int LAST = Part::item_tiles - (NUM_STAGES - 1) * STAGE_TILES;
    ActivationTile x[AHEAD][NB];
    float acc[2][NB][4] = {};
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
        if (i < Part::item_tiles) load_rows<Part, NB>(x[i], rows, i, lane);
    u32 slot = 0;
    Totals<Part, NB> total;
#pragma unroll(NUM_STAGES <= 3 && !ONE_BODY ? 3 : 1)
    for (int stage = 0; stage < NUM_STAGES; ++stage) {
        wait_for_copies<STAGES - 2>();
        __syncwarp();            // what other lanes copied is there, and they have read the slot
        request_next(ring, jobs, routing, lane);             // that is filled now
        slot = ring.read;
        if (ONE_BODY || LAST == STAGE_TILES || stage < NUM_STAGES - 1)
            multiply_stage<Part, NB, STAGE_TILES, AHEAD>(acc, x, stage * STAGE_TILES, ring, rows,
                                                         lane);
        else
            multiply_stage<Part, NB, LAST, AHEAD>(acc, x, stage * STAGE_TILES, ring, rows, lane);
        ring.read = next_slot(ring.read);
    }
    total.scale = read_row_scales(ring.slots, slot, lane);
    if constexpr (Part::split == 1) {
#pragma unroll
        for (int m = 0; m < NB; ++m)
#pragma unroll
            for (int i = 0; i < 2; ++i)
                total.of[m][i] = make_float2(acc[0][m][i] + acc[1][m][i],
                                             acc[0][m][2 + i] + acc[1][m][2 + i]);
    } else {
        const int warp = threadIdx.x / WARP;
        const bool second = warp & 1;
        float2 (&given)[BLOCKS][WARP] = halves.of[ring.turn][warp];
        float2 (&taken)[BLOCKS][WARP] = halves.of[ring.turn][warp ^ 1];
#pragma unroll
        for (int m = 0; m < NB; ++m) {
            const float2 even = make_float2(acc[0][m][0] + acc[1][m][0],
                                            acc[0][m][2] + acc[1][m][2]);
            const float2 odd = make_float2(acc[0][m][1] + acc[1][m][1],
                                           acc[0][m][3] + acc[1][m][3]);
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
    }
    return total;
}

// The n-th row of a unit whose i-th sum of block m this lane has.
template <class Part>
__device__ __forceinline__ int row_of_sum(int m, int i, int lane) {
    return 8 * m + 2 * (lane & 3) + (Part::split == 1 ? i : part_of_team<Part>());
}
