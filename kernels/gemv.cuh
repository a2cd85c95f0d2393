// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// What the products of a single row share: a block does some neighbouring row tiles one after the
// other, and each of its warps the same WARP_TILES columns of all of them. So a warp reads one
// stream of weights, through a ring of asynchronous copies that does not end with a row tile;
// its part of the activations lies in shared memory, prepared once; and the warps meet once, at
// the end, where their totals of all row tiles are added in the order of the warps.
//
// Only the first column of the matrix instruction counts. FIRST_LANES: so lanes 0 to 3 alone read
// activations, a quarter of what all would ask of the shared memory, and the others hold zeros; else
// they stand in all eight. HELD: they stay in registers for all row tiles.
//
// Dynamic shared memory, in this order: a ring for each warp; the row, 128 bytes a column tile;
// the sums of its groups, SUMS numbers a column tile; totals, 16 for each row tile and warp.
// PRECOND: K_WARPS * WARP_TILES == COLUMN_TILES, WARP_TILES a multiple of STAGE_TILES.
// Constants: COLUMNS (M), COLUMN_TILES, K_WARPS, WARP_TILES, STAGE_TILES, STAGES (of a ring, at
// least 2), MIN_BLOCKS (resident on one multiprocessor), HELD, NEXT (where the next launch is let
// in: 0 at the start, 1 in front of the wait, behind the first requests, 2 behind the wait, 3 in
// front of the last row tile). Expected of who includes this: CODE_VECTORS and SCALE_VECTORS (16
// bytes each, of a tile), SUMS, ROW_POWERS (two powers of two that the row is multiplied by: of the
// first and of the second pair of columns of each four; 0: none), FIRST_LANES.

#include "prefill_tile.cuh"

#define ONES 0x3F803F80u
#define ROUNDS ((WARP_TILES + 7) / 8)
#define WARP_STAGES (WARP_TILES / STAGE_TILES)
#define STAGE_SCALES (STAGE_TILES * CODE_VECTORS * 16)
#define STAGE_BYTES (STAGE_SCALES + STAGE_TILES * SCALE_VECTORS * 16)
#define RING_BYTES (STAGES * STAGE_BYTES)
#define ROW_TILE_BYTES (TILE_COLUMNS * 2)
#define ROW_REGISTERS (HELD ? WARP_TILES : STAGE_TILES > 1 ? 2 : 1)      // tiles of the row

extern __shared__ __align__(16) u8 gemv_memory[];

// Lane and warp, as numbers that the assembler can't work out again: else it reads the thread's
// index anew in every stage.
__device__ __forceinline__ int own_lane() {
    const int lane = threadIdx.x & (WARP - 1);
    return __shfl_sync(FULL_MASK, lane, lane);
}

__device__ __forceinline__ int own_warp() {
    return __shfl_sync(FULL_MASK, (int)threadIdx.x / WARP, 0);
}

// What a warp has still to request: where the next stage begins for this lane, its place in the
// row tile, and how many there are.
struct Requests {
    const uint4 *codes, *scales;
    int stage, left;
};

// Requests the next stage, if there is one, by all lanes of a warp. `to`: this lane's 16 bytes of
// the free slot.
__device__ __forceinline__ void request_stage(u8* to, Requests& next, int lane) {
    if (next.left > 0) {
#pragma unroll
        for (int i = 0; i < (STAGE_TILES * CODE_VECTORS + WARP - 1) / WARP; ++i)
            if ((i + 1) * WARP <= STAGE_TILES * CODE_VECTORS
                || i * WARP + lane < STAGE_TILES * CODE_VECTORS)
                copy_async(to + i * WARP * 16, next.codes + i * WARP, true);
        if (lane < STAGE_TILES * SCALE_VECTORS) copy_async(to + STAGE_SCALES, next.scales, true);
        --next.left;
        const bool last = WARP_STAGES == 1 || ++next.stage == WARP_STAGES;
        const int on = last ? COLUMN_TILES - WARP_TILES + STAGE_TILES : STAGE_TILES;
        next.codes += on * CODE_VECTORS;
        next.scales += on * SCALE_VECTORS;
        if (last) next.stage = 0;
    }
}

__device__ __forceinline__ u32 next_slot(u32 slot) {
    return slot == (STAGES - 1) * STAGE_BYTES ? 0 : slot + STAGE_BYTES;
}

// The warp's part of the row into shared memory, and the sums of its groups, eight column tiles at
// a time: each is a column of the matrix instruction. `x`, `row` and `sums` at its first tile.
__device__ __forceinline__ void place_row(u8* row, float* sums, const u16* x, int first_tile,
                                          int lane) {
    const int g = lane >> 2, t = lane & 3;
    uint4 part[ROUNDS][2];               // all requested before one is waited for
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
        const int tile = 8 * i + g;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int column = tile * TILE_COLUMNS + 32 * h + 8 * t;
            part[i][h] = make_uint4(0, 0, 0, 0);
            if (tile < WARP_TILES && (COLUMNS % TILE_COLUMNS == 0
                                      || first_tile * TILE_COLUMNS + column < COLUMNS))
                part[i][h] = load_activations(x + column);
        }
    }
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
        const uint4 (&b)[2] = part[i];
#pragma unroll
        for (int sum = 0; sum < SUMS; ++sum) {
            float c[4] = {};
#pragma unroll
            for (int h = SUMS == 2 ? sum : 0; h <= (SUMS == 2 ? sum : 1); ++h) {
                mma_bf16(c, ONES, ONES, ONES, ONES, b[h].x, b[h].y);
                mma_bf16(c, ONES, ONES, ONES, ONES, b[h].z, b[h].w);
            }
#pragma unroll
            for (int j = 0; j < 2; ++j)
                if (g == 0 && 8 * i + 2 * t + j < WARP_TILES)
                    sums[(8 * i + 2 * t + j) * SUMS + sum] = c[j];
        }
        if (8 * i + g >= WARP_TILES) continue;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            uint4 v = b[h];
#if ROW_POWERS
            const u32 powers = ROW_POWERS;
            v.x = scaled_by_low(v.x, powers), v.y = scaled_by_high(v.y, powers);
            v.z = scaled_by_low(v.z, powers), v.w = scaled_by_high(v.w, powers);
#endif
            *(uint4*)(row + (8 * i + g) * ROW_TILE_BYTES + h * 64 + t * 16) = v;
        }
    }
    __syncwarp();
}

// This lane's part of tile i of the row; `part` at its columns. What is not read stays zero.
__device__ __forceinline__ void read_row(ActivationTile& x, const u8* part, int i, int lane) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
        if (!FIRST_LANES || lane < 4) x.half[h] = *(const uint4*)(part + i * ROW_TILE_BYTES + h * 64);
}

// Where a warp leaves its totals of one row tile: rows g and g + 8 are `low` and `high`.
__device__ __forceinline__ void leave_totals(float* totals, float low, float high, int lane) {
    if (lane % 4) return;
    totals[lane / 4] = low;
    totals[lane / 4 + 8] = high;
}

// The sum over the warps, in their order.
__device__ __forceinline__ float sum_of_warps(const float* totals, int row_tile, int row) {
    const float* own = totals + row_tile * K_WARPS * TILE_ROWS + row;
    float sum = own[0];
#pragma unroll
    for (int w = 1; w < K_WARPS; ++w) sum += own[w * TILE_ROWS];
    return sum;
}
