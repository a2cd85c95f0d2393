// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// gemm_nvfp4: out = x W^T for generated rows, W in NVFP4, fragment order.
//             with GEGLU: out = gelu_tanh(bf16(x G^T)) * bf16(x U^T), G and U interleaved by 8 rows
//
// out        (T, N) bf16; with GEGLU (T, I)
// x          (T, M) bf16
// codes, scales  of (N, M), or (2 I, M), in fragment order
// row_scales (N / 16, 2) f32   of rows 0..7 and 8..15 of each row tile
//
// Bytes moved: N M / 2 + N M / 16 of weights, T (N + M) 2 of rows. Bound by reading the weights.
// One block does ROW_TILES row tiles for 16 activation rows (blockIdx.y): K_WARPS warps share the
// columns, WARP_TILES tiles each, and their results are added in the order of the warps. That cut
// depends on M alone, and the number of rows changes neither a row's operands nor their order, so
// a row has the same bits alone and among others. All weights of a block, or the first PREFETCH
// tiles of each warp, are requested before the wait for the kernel that wrote x.
//
// PRECOND: M a multiple of 8, x and out 16-byte aligned, K_WARPS * WARP_TILES >= COLUMN_TILES.
// PRECOND: PREFETCH a multiple of ACTIVATIONS, or all tiles of a warp.
// Constants: COLUMNS (M), COLUMN_TILES, K_WARPS, WARP_TILES, PREFETCH, ROW_TILES, BLOCKS (of 8
// activation rows: 1 or 2), GEGLU, MIN_BLOCKS (resident on one multiprocessor), ACTIVATIONS (tiles
// of them in flight).

#define AHEAD (BLOCKS == 1 ? ACTIVATIONS : 1)

__device__ __forceinline__ bool in_matrix(int column_tile) {
    return K_WARPS * WARP_TILES == COLUMN_TILES || column_tile < COLUMN_TILES;
}

__device__ __forceinline__ void load_row_tiles(WeightTile (&w)[ROW_TILES],
                                               const uint4* __restrict__ codes,
                                               const u32* __restrict__ scales, int row_tile,
                                               int num_row_tiles, int column_tile, int lane,
                                               u64 policy) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r)
        if (in_matrix(column_tile) && (ROW_TILES == 1 || row_tile + r < num_row_tiles))
            w[r] = load_tile(codes, scales, (u64)(row_tile + r) * COLUMN_TILES + column_tile, lane,
                             policy);
}

extern "C" __global__ void __launch_bounds__(K_WARPS * WARP, MIN_BLOCKS)
gemm_nvfp4(u16* __restrict__ out, const u16* x, const uint4* __restrict__ codes,
           const u32* __restrict__ scales, const float* __restrict__ row_scales, int num_tokens,
           int num_row_tiles, int num_outputs) {
    __shared__ float partial[ROW_TILES][K_WARPS][BLOCKS][PARTIAL_SIZE];
    __shared__ float tile_scales[ROW_TILES * 2];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    int row_tile = blockIdx.x * ROW_TILES, first_tile = warp * WARP_TILES;
    int first_token = blockIdx.y * 16;
    allow_next_kernel();
    u64 policy = streaming_policy();
    WeightTile w[PREFETCH][ROW_TILES];
#pragma unroll
    for (int i = 0; i < PREFETCH; ++i)
        load_row_tiles(w[i], codes, scales, row_tile, num_row_tiles, first_tile + i, lane, policy);
    u32 own_scale = 0;
    if (threadIdx.x < 2 * ROW_TILES && 2 * row_tile + threadIdx.x < 2 * num_row_tiles)
        own_scale = load_weights((const u32*)row_scales + 2 * row_tile + threadIdx.x, policy);
    wait_for_previous_kernel();

    const u16* rows[BLOCKS];
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m) {
        int token = first_token + 8 * m + g;
        rows[m] = token < num_tokens ? x + (u64)token * COLUMNS + 8 * t : 0;
    }
    ActivationTile activations[AHEAD][BLOCKS];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
        if (i < WARP_TILES && in_matrix(first_tile + i))
            load_activation_tile<BLOCKS>(activations[i], rows, t, first_tile + i, COLUMNS);
    float acc[ROW_TILES][2][BLOCKS][4] = {};
#pragma unroll(WARP_TILES <= 2 * PREFETCH ? 2 : 1)
    for (int base = 0; base < WARP_TILES; base += PREFETCH) {
#pragma unroll
        for (int i = 0; i < PREFETCH; ++i) {
            int tile = base + i, ahead = tile + AHEAD;
            if (tile >= WARP_TILES) continue;
            if (in_matrix(first_tile + tile)) {
#pragma unroll
                for (int r = 0; r < ROW_TILES; ++r)
                    if (ROW_TILES == 1 || row_tile + r < num_row_tiles)
                        multiply_tile<BLOCKS>(acc[r], w[i][r], activations[i % AHEAD]);
            }
            if (ahead < WARP_TILES && in_matrix(first_tile + ahead))
                load_activation_tile<BLOCKS>(activations[i % AHEAD], rows, t, first_tile + ahead,
                                             COLUMNS);
            if (tile + PREFETCH < WARP_TILES)
                load_row_tiles(w[i], codes, scales, row_tile, num_row_tiles,
                               first_tile + tile + PREFETCH, lane, policy);
        }
    }
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) store_partial<BLOCKS>(partial[r][warp], acc[r], lane);
    if (threadIdx.x < 2 * ROW_TILES) tile_scales[threadIdx.x] = __uint_as_float(own_scale);
    __syncthreads();

    const int rows_out = GEGLU ? 8 : 16, outputs = rows_out * 8 * BLOCKS;
    for (int i = threadIdx.x; i < ROW_TILES * outputs; i += K_WARPS * WARP) {
        int r = i / outputs, token = i % outputs / rows_out, row = i % rows_out;
        int tile = row_tile + r, column = tile * rows_out + row;
        if (first_token + token >= num_tokens || column >= num_outputs) continue;
        float value = summed(partial[r], row, token) * tile_scales[2 * r + (row >> 3)];
#if GEGLU
        float up = summed(partial[r], row + 8, token) * tile_scales[2 * r + 1];
        value = gelu_tanh(rounded_to_bf16(value)) * rounded_to_bf16(up);
#endif
        out[(u64)(first_token + token) * num_outputs + column] = to_bf16(value);
    }
}
