// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// affine_order: an MLX affine matrix of a checkpoint -> the order in which mma.sync takes it.
//
//   tile (r, k) of the result holds weight rows of `low` (its rows 0..7) and `high` (rows 8..15),
//   columns 64 k .. 64 k + 63. A plain matrix is both low and high, 16 rows apart from tile to
//   tile; gate and up of an MLP are interleaved as low = gate, high = up, 8 rows apart.
//
// words   (R, C, 32 BITS) u32        tiles, R = row tiles, C = column tiles: affine_tile.cuh
// scales  (R, C / TILES_PER_SCALE, TILE_SCALES) u32
// low, high  rows of codes (N, M BITS / 8) u8, lowest bit first; scales, biases (N, M / GROUP)
//            bf16
//
// Bytes moved: N M BITS / 8 + N M 4 / GROUP read and about as much written; bound by memory.
// One thread writes a lane's part of a tile.
// PRECOND: M a multiple of GROUP. Rows and columns beyond N and M get scale and bias 0.
// Constants: BITS, GROUP.

#include "affine_tile.cuh"

// Eight codes of a row; 0 outside.
__device__ __forceinline__ u64 codes_of(const u8* __restrict__ rows, int row, int num_rows,
                                        int column, int num_columns) {
    u64 codes = 0;
    if (row >= num_rows || column >= num_columns) return codes;
    const u8* from = rows + ((u64)row * num_columns + column) / 8 * BITS;
#pragma unroll
    for (int i = 0; i < BITS; ++i) codes |= (u64)from[i] << (8 * i);
    return codes;
}

__device__ __forceinline__ u32 scale_of(const u16* __restrict__ scales,
                                        const u16* __restrict__ biases, int row, int num_rows,
                                        int group, int num_groups, int shifted) {
    if (row >= num_rows || group >= num_groups) return 0;
    const u64 place = (u64)row * num_groups + group;
    // exact: no checkpoint has a scale near the largest number
    const float scale = from_bf16(scales[place]) * __uint_as_float((u32)(shifted + 127) << 23);
    return to_bf16(scale) | (u32)biases[place] << 16;
}

extern "C" __global__ void __launch_bounds__(256)
affine_order(u32* __restrict__ words, u32* __restrict__ scales,
             const u8* __restrict__ low_codes, const u16* __restrict__ low_scales,
             const u16* __restrict__ low_biases, const u8* __restrict__ high_codes,
             const u16* __restrict__ high_scales, const u16* __restrict__ high_biases,
             int num_rows, int num_columns, int num_row_tiles, int num_column_tiles, int step,
             int high_offset) {
    const u64 index = (u64)blockIdx.x * 256 + threadIdx.x, tile = index / WARP;
    if (tile >= (u64)num_row_tiles * num_column_tiles) return;
    const int lane = (int)(index % WARP), g = lane >> 2, t = lane & 3;
    const int row_tile = (int)(tile / num_column_tiles);
    const int column_tile = (int)(tile % num_column_tiles);
    const int low_row = row_tile * step + g, high_row = low_row + high_offset;
    u32 low[LOW_BITS] = {}, high[HIGH_BITS ? HIGH_BITS : 1] = {};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int column = column_tile * TILE_COLUMNS + 32 * h + 8 * t;
        const u64 rows[2] = {codes_of(low_codes, low_row, num_rows, column, num_columns),
                             codes_of(high_codes, high_row, num_rows, column, num_columns)};
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            // column i / 2 of the eight, of row g (i even) or g + 8 (i odd)
            const u32 code = (u32)(rows[i % 2] >> (i / 2 * BITS)) & ((1 << BITS) - 1);
            const int p = 8 * h + i / 8 * 4 + i / 4 % 2 * 2 + i % 2, odd = i / 2 % 2 * 16;
            low[p / LOW_PAIRS] |= (code & ((1 << LOW_BITS) - 1))
                << (p % LOW_PAIRS * LOW_BITS + odd);
#if HIGH_BITS
            high[p / HIGH_PAIRS] |= (code >> LOW_BITS) << (p % HIGH_PAIRS * HIGH_BITS + odd);
#endif
        }
    }
    u32* to = words + tile * TILE_WORDS;
    const int vector = LOW_BITS < 4 ? LOW_BITS : 4;      // words that a lane loads at once
#pragma unroll
    for (int i = 0; i < LOW_BITS; ++i)
        to[i / vector * vector * WARP + lane * vector + i % vector] = low[i];
#pragma unroll
    for (int i = 0; i < HIGH_BITS; ++i)
        to[WARP * LOW_BITS + lane * HIGH_BITS + i] = high[i];
    if (t >= TILE_GROUPS || column_tile % TILES_PER_SCALE) return;
    const int num_groups = num_columns / GROUP, group = column_tile * TILE_COLUMNS / GROUP + t;
    const int scale_tiles = (num_column_tiles + TILES_PER_SCALE - 1) / TILES_PER_SCALE;
    const u64 place = (u64)row_tile * scale_tiles + column_tile / TILES_PER_SCALE;
    u32* pair = scales + place * TILE_SCALES + g * 2 * TILE_GROUPS + 2 * t;
    pair[0] = scale_of(low_scales, low_biases, low_row, num_rows, group, num_groups, SHIFTED(0));
    pair[1] = scale_of(high_scales, high_biases, high_row, num_rows, group, num_groups,
                       SHIFTED(1));
}
