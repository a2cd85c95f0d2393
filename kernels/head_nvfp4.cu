// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// head_nvfp4: logits = cap * tanh(x W^T / cap), W the tied table requantised to NVFP4.
//
// logits     (R, V) f32
// x          (R, H) bf16, normed
// codes, scales  of (V, H) in fragment order; row_scales (V / 16, 2) f32
//
// Bytes moved: V H 9 / 16 of weights, R (2 H + 4 V) of rows. Bound by reading the weights.
// Every warp walks row tiles of its own over the full depth, PREFETCH tiles ahead across row
// tiles, so nothing is exchanged between warps. The activation rows lie in shared memory in
// fragment order (STAGED), or come through L1 where they do not fit. A row's sums run over the
// columns in ascending tiles whatever other rows there are.
//
// PRECOND: H a multiple of 8, x 16-byte aligned, V a multiple of 16; at most 16 rows a block
// (blockIdx.y). Dynamic shared memory: STAGED * COLUMN_TILES * BLOCKS * 1024 bytes.
// Constants: COLUMNS (H), COLUMN_TILES, WARPS, PREFETCH, BLOCKS, STAGED, MIN_BLOCKS.

// Requested before the products, so that the end of a row tile does not wait for memory; before
// sm_90 there are no registers left for them.
#define EARLY_SCALES (__CUDA_ARCH__ >= 900)

__device__ __forceinline__ void load_scales(u32 (&scale)[2], const float* __restrict__ row_scales,
                                            int row_tile, u64 policy) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
        scale[half] = load_weights((const u32*)row_scales + 2 * row_tile + half, policy);
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP, MIN_BLOCKS)
head_nvfp4(float* __restrict__ logits, const u16* x, const uint4* __restrict__ codes,
           const u32* __restrict__ scales, const float* __restrict__ row_scales, int num_rows,
           int num_row_tiles, int vocab_size, float cap) {
    extern __shared__ uint4 staged[];   // [tile][m][half][lane]
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    int first_row = blockIdx.y * 16, stride = gridDim.x * WARPS;
    int row_tile = blockIdx.x * WARPS + warp;
    allow_next_kernel();
    u64 policy = streaming_policy();
    WeightTile w[PREFETCH];
#pragma unroll
    for (int i = 0; i < PREFETCH; ++i)
        if (row_tile < num_row_tiles)
            w[i] = load_tile(codes, scales, (u64)row_tile * COLUMN_TILES + i, lane, policy);
    wait_for_previous_kernel();

    const u16* rows[BLOCKS];
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m) {
        int row = first_row + 8 * m + g;
        rows[m] = row < num_rows ? x + (u64)row * COLUMNS + 8 * t : 0;
    }
#if STAGED
    for (int tile = warp; tile < COLUMN_TILES; tile += WARPS) {
        ActivationTile part[BLOCKS];
        load_activation_tile<BLOCKS>(part, rows, t, tile, COLUMNS);
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                staged[((tile * BLOCKS + m) * 2 + h) * WARP + lane] = part[m].half[h];
    }
    __syncthreads();
#endif
    for (; row_tile < num_row_tiles; row_tile += stride) {
        u32 scale[2];
        if (EARLY_SCALES) load_scales(scale, row_scales, row_tile, policy);
        float acc[2][BLOCKS][4] = {};
        for (int base = 0; base < COLUMN_TILES; base += PREFETCH) {
#pragma unroll
            for (int i = 0; i < PREFETCH; ++i) {
                int tile = base + i;
                if (COLUMN_TILES % PREFETCH != 0 && tile >= COLUMN_TILES) continue;
                ActivationTile part[BLOCKS];
#if STAGED
#pragma unroll
                for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        part[m].half[h] = staged[((tile * BLOCKS + m) * 2 + h) * WARP + lane];
#else
                load_activation_tile<BLOCKS>(part, rows, t, tile, COLUMNS);
#endif
                multiply_tile<BLOCKS>(acc, w[i], part);
                // the same slot's next tile: further right, or the start of the next row tile
                int next_row = tile + PREFETCH < COLUMN_TILES ? row_tile : row_tile + stride;
                int next_tile = tile + PREFETCH < COLUMN_TILES ? tile + PREFETCH : i;
                if (next_row < num_row_tiles)
                    w[i] = load_tile(codes, scales, (u64)next_row * COLUMN_TILES + next_tile, lane,
                                     policy);
            }
        }
        if (!EARLY_SCALES) load_scales(scale, row_scales, row_tile, policy);
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                int row = first_row + 8 * m + 2 * t + (j & 1), id = row_tile * 16 + g + 8 * (j >> 1);
                float z = (acc[0][m][j] + acc[1][m][j]) * __uint_as_float(scale[j >> 1]);
                if (row < num_rows)
                    logits[(u64)row * vocab_size + id] = cap * tanhf(z / cap);
            }
        }
    }
}
