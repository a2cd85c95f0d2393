// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// gemm_affine: out = x W^T, W in MLX affine codes, fragment order: W = scale q + bias by groups.
//   with FORM 1: out = gelu_tanh(bf16(x G^T)) * bf16(x U^T), G and U interleaved by 8 rows
//   with FORM 2: out = cap * tanh(x W^T / cap) in f32, the head
//   with EXPERTS: for pairs (token, choice) that are sorted by expert (prefill_sort.cu)
//
// out        (T, stride) bf16, FORM 2 f32: N columns of it (FORM 1: I) from its first on
// x          (T, M) bf16; EXPERTS: row pair / divisor, and out has one row for each pair
// words, scales  of (N, M), or (2 I, M), in fragment order (affine_tile.cuh); EXPERTS: E of them
// order      (T K) i32: pairs by expert; items {expert, first place in order, rows (0: none, at
//            most 16), 0}
//
// Bytes moved: N M BITS / 8 + N M 4 / GROUP of weights, T (N + M) 2 of rows. Bound by reading the
// weights.
// Codes are exact in bf16, so a group's products with them are summed in f32; its scale and its
// bias times the sum of its activations (a product with ones, shared by ROW_TILES row tiles) are
// added to the row's total by one fused step each, with GROUP 128 for each 64 columns.
// One block does ROW_TILES row tiles for 16 activation rows: K_WARPS warps share the columns,
// WARP_TILES tiles each, and their totals are added in the order of the warps. That cut follows
// from N and M, and the number of rows changes neither a row's operands nor their order, so a row
// has the same bits alone and among others. Weights come through a ring in shared memory that each
// warp has for itself, by asynchronous copies, the first ones before the wait for the kernel that
// wrote x: in registers they would not stay ahead, since the assembler gives all loads of a loop
// one counter. PROMPT: blocks of one row tile follow one another, so that many rows find its
// weights in the L2; nothing else changes.
//
// PRECOND: M a multiple of GROUP, x 16-byte aligned, K_WARPS * WARP_TILES >= COLUMN_TILES.
// PRECOND: dynamic shared memory for the rings, and after them for the totals: shared_bytes.
// Constants: BITS, GROUP, COLUMNS (M), COLUMN_TILES, K_WARPS, WARP_TILES, STAGES (of a ring, at
// least 2), STAGE_TILES (of each row tile), ROW_TILES, BLOCKS (of 8 activation rows: 1 or 2),
// SINGLE (one activation row), FORM, EXPERTS, PROMPT, MIN_BLOCKS (resident on one multiprocessor).

#include "affine_tile.cuh"
#include "prefill_tile.cuh"

#define ONES 0x3F803F80u
#define SCALE_TILES ((COLUMN_TILES + TILES_PER_SCALE - 1) / TILES_PER_SCALE)
#if FORM == 2
#define OUTPUT float
#else
#define OUTPUT u16
#endif

#define WHOLE (WARP_TILES % STAGE_TILES == 0 && K_WARPS * WARP_TILES == COLUMN_TILES)
#define VECTORS (TILE_WORDS / 4)
#define SCALE_VECTORS (TILE_SCALES / 4)
// Of a row tile in a stage: its tiles, then their scales.
#define ROW_BYTES (STAGE_TILES * (VECTORS + SCALE_VECTORS) * 16)
#define STAGE_BYTES (ROW_TILES * ROW_BYTES)

// Where this lane's part of the next stage of the first row tile is, and of its scales (with
// groups of 128: of the first stage).
struct AffineSource {
    const uint4 *words, *scales;
};

// Requests the stage that begins with tile `tile` of this warp, of all its row tiles, by all
// lanes, and steps on to the next.
__device__ __forceinline__ void request_stage(u8* stage, AffineSource& from, int row_tile,
                                              int num_row_tiles, int first_tile, int tile,
                                              int num_tiles, int lane) {
    const int tiles = WHOLE ? STAGE_TILES : min(STAGE_TILES, num_tiles - tile);
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
        if (ROW_TILES > 1 && row_tile + r >= num_row_tiles) continue;
        u8* to = stage + r * ROW_BYTES + lane * 16;
        const uint4* words = from.words + r * COLUMN_TILES * VECTORS;
#pragma unroll
        for (int i = 0; i < (STAGE_TILES * VECTORS + WARP - 1) / WARP; ++i)
            if ((WHOLE && (i + 1) * WARP <= STAGE_TILES * VECTORS)
                || i * WARP + lane < tiles * VECTORS)
                copy_async(to + i * WARP * 16, words + i * WARP, true);
        to += STAGE_TILES * VECTORS * 16;
#if TILES_PER_SCALE == 1
        if (lane < tiles * SCALE_VECTORS)
            copy_async(to, from.scales + r * SCALE_TILES * SCALE_VECTORS, true);
#else
        // a tile may be the second half of a group
#pragma unroll
        for (int i = 0; i < STAGE_TILES; ++i) {
            const int scales = (first_tile + tile + i) / 2 - first_tile / 2;
            if (i < tiles && lane < SCALE_VECTORS)
                copy_async(to + i * SCALE_VECTORS * 16,
                           from.scales + (r * SCALE_TILES + scales) * SCALE_VECTORS, true);
        }
#endif
    }
    from.words += STAGE_TILES * VECTORS;
    if (TILES_PER_SCALE == 1) from.scales += STAGE_TILES * SCALE_VECTORS;
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
#define COLUMN_STEP (SINGLE ? 2 : 1)     // a single row has one column of each result's pair

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
    for (int j = 0; j < 4; j += COLUMN_STEP) {
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

typedef float Partial[K_WARPS][BLOCKS][PARTIAL_SIZE];

extern "C" __global__ void __launch_bounds__(K_WARPS * WARP, MIN_BLOCKS)
gemm_affine(OUTPUT* __restrict__ out, const u16* x, const u32* __restrict__ words,
            const u32* __restrict__ scales, const int* order, const int4* items, int divisor,
            int num_tokens, int num_row_tiles, int num_outputs, int stride, float cap) {
    extern __shared__ __align__(16) u8 rings[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int row_tile = (PROMPT ? blockIdx.y : blockIdx.x) * ROW_TILES;
    const int row_block = PROMPT ? blockIdx.x : blockIdx.y;  // of activations
    allow_next_kernel();
#if EXPERTS
    wait_for_previous_kernel();
    const uint4 item = load_activations(items + row_block);
    num_tokens = (int)item.z;
    if (num_tokens == 0) return;
    order += item.y;
    const u64 first_of_expert = (u64)item.x * num_row_tiles;
    const int first_token = 0;
#else
    const u64 first_of_expert = 0;
    const int first_token = row_block * 16;
#endif
    const int first_tile = warp * WARP_TILES, num_tiles = min(WARP_TILES,
                                                              COLUMN_TILES - first_tile);
    u8* ring = rings + warp * STAGES * STAGE_BYTES;
    AffineSource from = {
        (const uint4*)words + ((first_of_expert + row_tile) * COLUMN_TILES + first_tile) * VECTORS
            + lane,
        (const uint4*)scales + ((first_of_expert + row_tile) * SCALE_TILES
                                + first_tile / TILES_PER_SCALE) * SCALE_VECTORS + lane};
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i * STAGE_TILES < num_tiles)
            request_stage(ring + i * STAGE_BYTES, from, row_tile, num_row_tiles, first_tile,
                          i * STAGE_TILES, num_tiles, lane);
        commit_copies();
    }
    if (!EXPERTS) wait_for_previous_kernel();

    const u16* rows[BLOCKS];
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m) {
        int token = min(first_token + 8 * m + g, num_tokens - 1);    // no result of a second one
#if EXPERTS
        token = (int)load_activation_word(order + token) / divisor;
#endif
        rows[m] = x + (u64)token * COLUMNS + first_tile * TILE_COLUMNS + 8 * t;
    }
    ActivationTile activations[BLOCKS];
    if (num_tiles > 0) load_part(activations, rows, t, first_tile, 0);
    Totals total[ROW_TILES] = {};
    u32 stage = 0, free = (STAGES - 1) * STAGE_BYTES;
#pragma unroll 1
    for (int tile = 0; tile < num_tiles; tile += STAGE_TILES) {
        wait_for_copies<STAGES - 2>();
        __syncwarp();                    // all lanes' copies, and all have read the free stage
        const int ahead = tile + (STAGES - 1) * STAGE_TILES;
        if (ahead < num_tiles)
            request_stage(ring + free, from, row_tile, num_row_tiles, first_tile, ahead, num_tiles,
                          lane);
        commit_copies();
#pragma unroll
        for (int i = 0; i < STAGE_TILES; ++i) {
            if (!WHOLE && tile + i >= num_tiles) continue;
            AffineTile w[ROW_TILES];
#pragma unroll
            for (int r = 0; r < ROW_TILES; ++r)
                if (ROW_TILES == 1 || row_tile + r < num_row_tiles)
                    read_affine(w[r], ring + stage + r * ROW_BYTES + i * VECTORS * 16,
                                ring + stage + r * ROW_BYTES
                                    + (STAGE_TILES * VECTORS + i * SCALE_VECTORS) * 16, lane);
            multiply_tile(total, w, activations, row_tile, num_row_tiles);
            if (tile + i + 1 < num_tiles)
                load_part(activations, rows, t, first_tile + tile + i + 1, i + 1);
        }
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m) rows[m] += STAGE_TILES * TILE_COLUMNS;
        free = stage;
        stage = stage == (STAGES - 1) * STAGE_BYTES ? 0 : stage + STAGE_BYTES;
    }
    __syncthreads();                     // the rings are read
    Partial* partial = (Partial*)rings;
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
            for (int j = 0; j < 4; j += COLUMN_STEP)
                partial[r][warp][m][j * (WARP + 1) + lane] = total[r][m][j];
    __syncthreads();

    const int rows_out = FORM == 1 ? 8 : 16, outputs = rows_out * 8 * BLOCKS;
    for (int i = threadIdx.x; i < ROW_TILES * outputs; i += K_WARPS * WARP) {
        int r = i / outputs, token = i % outputs / rows_out, row = i % rows_out;
        int column = (row_tile + r) * rows_out + row;
        if (first_token + token >= num_tokens || column >= num_outputs) continue;
        float value = summed(partial[r], row, token);
#if EXPERTS
        u64 place = (u64)load_activation_word(order + token) * stride + column;
#else
        u64 place = (u64)(first_token + token) * stride + column;
#endif
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
