// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// gemm_bf16: out = x W^T for few rows, W in bf16 as the checkpoint stores it (no repacking: the
// tied table serves the embedding from the same memory).
//            with SOFTCAP: out = cap * tanh(x W^T / cap) in f32, the head
//            with GATED: out = f(x G^T) * (x U^T), w being G above U; f is gelu_tanh (1) or silu (2)
//
// out (T, N) bf16, with SOFTCAP f32; x (T, M) bf16; w (N, M) bf16, with GATED (2 N, M)
//
// Bytes moved: N M 2 of weights, T (N + M) 2 of rows. Bound by reading the weights.
// One block does 16 weight rows, with GATED 8 of G and the same 8 of U, for 16 activation rows (blockIdx.y): K_WARPS warps share the
// columns, WARP_TILES tiles of 64 each, PREFETCH of them in flight, and their results are added in
// the order of the warps. The cut depends on M alone, so a row has the same bits in any company.
// A lane takes 8 columns of weight rows g and g + 8 from each half of a tile, as in NVFP4's order.
//
// PRECOND: M a multiple of 8, w, x and out 16-byte aligned, K_WARPS * WARP_TILES >= COLUMN_TILES.
// Constants: COLUMNS (M), COLUMN_TILES, K_WARPS, WARP_TILES, PREFETCH, BLOCKS (of 8 activation
// rows: 1 or 2), SOFTCAP, GATED, MIN_BLOCKS.

struct DenseTile {
    uint4 low[2], high[2];       // rows g and g + 8, one vector a half
};

__device__ __forceinline__ void load_dense(DenseTile& w, const u16* __restrict__ low,
                                           const u16* __restrict__ high, int t, int column_tile,
                                           u64 policy) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        int column = column_tile * TILE_COLUMNS + 32 * h;
        bool inside = COLUMNS % TILE_COLUMNS == 0 || column + 8 * t < COLUMNS;
        w.low[h] = w.high[h] = make_uint4(0, 0, 0, 0);
        if (low && inside) w.low[h] = load_weights((const uint4*)(low + column), policy);
        if (high && inside) w.high[h] = load_weights((const uint4*)(high + column), policy);
    }
}

__device__ __forceinline__ bool in_matrix(int column_tile) {
    return K_WARPS * WARP_TILES == COLUMN_TILES || column_tile < COLUMN_TILES;
}

#define OUTPUT_ROWS (GATED ? 8 : 16)    // of a block
#if SOFTCAP
#define OUTPUT float
#else
#define OUTPUT u16
#endif

extern "C" __global__ void __launch_bounds__(K_WARPS * WARP, MIN_BLOCKS)
gemm_bf16(OUTPUT* __restrict__ out, const u16* x, const u16* __restrict__ w, int num_tokens,
          int num_outputs, float cap) {
    __shared__ float partial[K_WARPS][BLOCKS][PARTIAL_SIZE];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    int first_row = blockIdx.x * OUTPUT_ROWS, first_tile = warp * WARP_TILES;
    int first_token = blockIdx.y * 16, second_row = GATED ? num_outputs + first_row : first_row + 8;
    bool second = first_row + g + (GATED ? 0 : 8) < num_outputs;
    allow_next_kernel();
    u64 policy = streaming_policy();
    const u16* low = first_row + g < num_outputs
        ? w + (u64)(first_row + g) * COLUMNS + 8 * t : 0;
    const u16* high = second ? w + (u64)(second_row + g) * COLUMNS + 8 * t : 0;
    DenseTile tiles[PREFETCH];
#pragma unroll
    for (int i = 0; i < PREFETCH; ++i)
        if (in_matrix(first_tile + i)) load_dense(tiles[i], low, high, t, first_tile + i, policy);
    wait_for_previous_kernel();

    const u16* rows[BLOCKS];
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m) {
        int token = first_token + 8 * m + g;
        rows[m] = token < num_tokens ? x + (u64)token * COLUMNS + 8 * t : 0;
    }
    float acc[2][BLOCKS][4] = {};
#pragma unroll(WARP_TILES <= 2 * PREFETCH ? 2 : 1)
    for (int base = 0; base < WARP_TILES; base += PREFETCH) {
        ActivationTile activations[PREFETCH][BLOCKS];
#pragma unroll
        for (int i = 0; i < PREFETCH; ++i)
            if (base + i < WARP_TILES && in_matrix(first_tile + base + i))
                load_activation_tile<BLOCKS>(activations[i], rows, t, first_tile + base + i,
                                             COLUMNS);
#pragma unroll
        for (int i = 0; i < PREFETCH; ++i) {
            int tile = base + i;
            if (tile >= WARP_TILES || !in_matrix(first_tile + tile)) continue;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const uint4 &a = tiles[i].low[h], &b = tiles[i].high[h];
#pragma unroll
                for (int m = 0; m < BLOCKS; ++m) {
                    const uint4& v = activations[i][m].half[h];
                    mma_bf16(acc[h][m], a.x, b.x, a.y, b.y, v.x, v.y);
                    mma_bf16(acc[h][m], a.z, b.z, a.w, b.w, v.z, v.w);
                }
            }
            if (tile + PREFETCH < WARP_TILES && in_matrix(first_tile + tile + PREFETCH))
                load_dense(tiles[i], low, high, t, first_tile + tile + PREFETCH, policy);
        }
    }
    store_partial<BLOCKS>(partial[warp], acc, lane);
    __syncthreads();
    for (int i = threadIdx.x; i < OUTPUT_ROWS * 8 * BLOCKS; i += K_WARPS * WARP) {
        int row = i % OUTPUT_ROWS, token = i / OUTPUT_ROWS;
        if (first_token + token >= num_tokens || first_row + row >= num_outputs) continue;
        float value = summed(partial, row, token);
        u64 place = (u64)(first_token + token) * num_outputs + first_row + row;
#if SOFTCAP
        out[place] = cap * tanhf(value / cap);
#elif GATED
        // each product rounds where a kernel of its own would have written it
        float gate = rounded_to_bf16(value), up = rounded_to_bf16(summed(partial, row + 8, token));
        out[place] = to_bf16((GATED == 1 ? gelu_tanh(gate) : gate / (1.0f + expf(-gate))) * up);
#else
        out[place] = to_bf16(value);
#endif
    }
}
