// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// gemm_affine: out = x W^T, W in MLX affine codes, fragment order: W = scale q + bias by groups.
//              with FORM 1: out = gelu_tanh(bf16(x G^T)) * bf16(x U^T), G and U interleaved by 8 rows
//              with FORM 2: out = cap * tanh(x W^T / cap) in f32, the head
//
// out        (T, stride) bf16, FORM 2 f32: N columns of it (FORM 1: I) from its first on
// x          (T, M) bf16
// words, scales  of (N, M), or (2 I, M), in fragment order (affine_tile.cuh)
//
// Bytes moved: N M BITS / 8 + N M 4 / GROUP of weights, T (N + M) 2 of rows. Bound by reading the
// weights.
// Codes are exact in bf16, so a group's products with them are summed in f32; its scale and its
// bias times the sum of its activations (a product with ones, shared by ROW_TILES row tiles) are
// added to the row's total by one fused step each. With GROUP 128 that is done for each 64 columns.
// One block does ROW_TILES row tiles for 16 activation rows: K_WARPS warps share the columns,
// WARP_TILES tiles each, and their totals are added in the order of the warps. That cut depends on
// M alone, and the number of rows changes neither a row's operands nor their order, so a row has
// the same bits alone and among others. The first PREFETCH tiles of each warp are requested before
// the wait for the kernel that wrote x. PROMPT: blocks of one row tile follow one another, so that
// many rows find its weights in the L2; nothing else changes.
//
// PRECOND: M a multiple of GROUP, x 16-byte aligned, K_WARPS * WARP_TILES >= COLUMN_TILES.
// PRECOND: PREFETCH a multiple of ACTIVATIONS, or all tiles of a warp.
// Constants: BITS, GROUP, COLUMNS (M), COLUMN_TILES, K_WARPS, WARP_TILES, PREFETCH, ROW_TILES,
// BLOCKS (of 8 activation rows: 1 or 2), FORM, PROMPT, MIN_BLOCKS (resident on one multiprocessor),
// ACTIVATIONS (tiles of them in flight).

#include "affine_tile.cuh"

#define ONES 0x3F803F80u
#define SCALE_TILES ((COLUMN_TILES + TILES_PER_SCALE - 1) / TILES_PER_SCALE)
#if FORM == 2
#define OUTPUT float
#else
#define OUTPUT u16
#endif

__device__ __forceinline__ bool in_matrix(int column_tile) {
    return K_WARPS * WARP_TILES == COLUMN_TILES || column_tile < COLUMN_TILES;
}

// Of tile `tile` of this warp, `on` tiles after those that `from` points at.
__device__ __forceinline__ void load_row_tiles(AffineTile (&w)[ROW_TILES],
                                               const AffineSource& from, int row_tile,
                                               int num_row_tiles, int first_tile, int tile, int on,
                                               u64 policy) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
        if (!in_matrix(first_tile + tile) || (ROW_TILES > 1 && row_tile + r >= num_row_tiles))
            continue;
        // a group of 128 columns: from the first tile of the warp, which may be its second half
        const int scales = TILES_PER_SCALE == 1 ? on : (first_tile + tile) / 2 - first_tile / 2;
        load_affine(w[r], from, r * COLUMN_TILES + on, r * SCALE_TILES + scales, policy);
    }
}

// A lane's part of the activations' tile `column_tile`, `on` tiles after those of `rows`.
__device__ __forceinline__ void load_part(ActivationTile (&x)[BLOCKS],
                                          const u16* const (&rows)[BLOCKS], int t,
                                          int column_tile, int on) {
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            bool inside = COLUMNS % TILE_COLUMNS == 0
                || column_tile * TILE_COLUMNS + 32 * h + 8 * t < COLUMNS;
            if (COLUMNS % TILE_COLUMNS) x[m].half[h] = make_uint4(0, 0, 0, 0);
            if (inside) x[m].half[h] = load_activations(rows[m] + on * TILE_COLUMNS + 32 * h);
        }
    }
}

typedef float Totals[BLOCKS][4];

// One group of one row tile: its products, and the step to the totals.
__device__ __forceinline__ void add_group(Totals& total, const AffineTile& w, int group,
                                          const ActivationTile (&x)[BLOCKS], const Totals& sums) {
    Totals products = {};
#pragma unroll
    for (int h = TILE_GROUPS == 2 ? group : 0; h <= (TILE_GROUPS == 2 ? group : 1); ++h) {
        u32 a[8];
        decode_affine(a, w, h);
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            const u32* part = a + 4 * step;
#pragma unroll
            for (int m = 0; m < BLOCKS; ++m) {
                const uint4& b = x[m].half[h];
                mma_bf16(products[m], part[0], part[1], part[2], part[3], step ? b.z : b.x,
                         step ? b.w : b.y);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const u32 pair = w.scales[2 * group + j / 2];
        const float scale = bf16_low(pair), bias = bf16_high(pair);
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m) {
            total[m][j] = __fmaf_rn(bias, sums[m][j % 2], total[m][j]);
            total[m][j] = __fmaf_rn(scale, products[m][j], total[m][j]);
        }
    }
}

__device__ __forceinline__ void multiply_tile(Totals (&total)[ROW_TILES],
                                              const AffineTile (&w)[ROW_TILES],
                                              const ActivationTile (&x)[BLOCKS], int row_tile,
                                              int num_row_tiles) {
#pragma unroll
    for (int group = 0; group < TILE_GROUPS; ++group) {
        Totals sums = {};                // of the activations: all rows of the result are alike
#pragma unroll
        for (int h = TILE_GROUPS == 2 ? group : 0; h <= (TILE_GROUPS == 2 ? group : 1); ++h) {
#pragma unroll
            for (int m = 0; m < BLOCKS; ++m) {
                const uint4& b = x[m].half[h];
                mma_bf16(sums[m], ONES, ONES, ONES, ONES, b.x, b.y);
                mma_bf16(sums[m], ONES, ONES, ONES, ONES, b.z, b.w);
            }
        }
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r)
            if (ROW_TILES == 1 || row_tile + r < num_row_tiles)
                add_group(total[r], w[r], group, x, sums);
    }
}

extern "C" __global__ void __launch_bounds__(K_WARPS * WARP, MIN_BLOCKS)
gemm_affine(OUTPUT* __restrict__ out, const u16* x, const u32* __restrict__ words,
            const u32* __restrict__ scales, int num_tokens, int num_row_tiles, int num_outputs,
            int stride, float cap) {
    __shared__ float partial[ROW_TILES][K_WARPS][BLOCKS][PARTIAL_SIZE];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    int row_tile = (PROMPT ? blockIdx.y : blockIdx.x) * ROW_TILES;
    int first_token = (PROMPT ? blockIdx.x : blockIdx.y) * 16, first_tile = warp * WARP_TILES;
    allow_next_kernel();
    u64 policy = streaming_policy();
    AffineSource from = affine_source(
        words, scales, (u64)row_tile * COLUMN_TILES + first_tile,
        (u64)row_tile * SCALE_TILES + first_tile / TILES_PER_SCALE, lane);
    AffineTile w[PREFETCH][ROW_TILES];
#pragma unroll
    for (int i = 0; i < PREFETCH; ++i)
        load_row_tiles(w[i], from, row_tile, num_row_tiles, first_tile, i, i, policy);
    wait_for_previous_kernel();

    const u16* rows[BLOCKS];
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m) {
        int token = min(first_token + 8 * m + g, num_tokens - 1);    // no result of a second one
        rows[m] = x + (u64)token * COLUMNS + first_tile * TILE_COLUMNS + 8 * t;
    }
    ActivationTile activations[ACTIVATIONS][BLOCKS];
#pragma unroll
    for (int i = 0; i < ACTIVATIONS; ++i)
        if (i < WARP_TILES && in_matrix(first_tile + i))
            load_part(activations[i], rows, t, first_tile + i, i);
    Totals total[ROW_TILES] = {};
#pragma unroll 1                         // more takes registers that blocks need to be resident
    for (int base = 0; base < WARP_TILES; base += PREFETCH) {
#pragma unroll
        for (int i = 0; i < PREFETCH; ++i) {
            int tile = base + i, ahead = tile + ACTIVATIONS;
            if (tile >= WARP_TILES) continue;
            if (in_matrix(first_tile + tile))
                multiply_tile(total, w[i], activations[i % ACTIVATIONS], row_tile, num_row_tiles);
            if (ahead < WARP_TILES && in_matrix(first_tile + ahead))
                load_part(activations[i % ACTIVATIONS], rows, t, first_tile + ahead,
                          i + ACTIVATIONS);
            if (tile + PREFETCH < WARP_TILES)
                load_row_tiles(w[i], from, row_tile, num_row_tiles, first_tile, tile + PREFETCH,
                               i + PREFETCH, policy);
        }
        from.low += PREFETCH * TILE_WORDS;
        from.high += PREFETCH * TILE_WORDS;
        if (TILES_PER_SCALE == 1) from.scales += PREFETCH * TILE_SCALES;
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m) rows[m] += PREFETCH * TILE_COLUMNS;
    }
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                partial[r][warp][m][j * (WARP + 1) + lane] = total[r][m][j];
    __syncthreads();

    const int rows_out = FORM == 1 ? 8 : 16, outputs = rows_out * 8 * BLOCKS;
    for (int i = threadIdx.x; i < ROW_TILES * outputs; i += K_WARPS * WARP) {
        int r = i / outputs, token = i % outputs / rows_out, row = i % rows_out;
        int column = (row_tile + r) * rows_out + row;
        if (first_token + token >= num_tokens || column >= num_outputs) continue;
        float value = summed(partial[r], row, token);
        u64 place = (u64)(first_token + token) * stride + column;
#if FORM == 2
        out[place] = cap * tanhf(value / cap);
#else
#if FORM == 1
        value = gelu_tanh(rounded_to_bf16(value)) * rounded_to_bf16(summed(partial[r], row + 8,
                                                                            token));
#endif
        out[place] = to_bf16(value);
#endif
    }
}
