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
// Every warp walks row tiles of its own over the full depth, ROW_TILES neighbouring ones at a time,
// so nothing is exchanged between warps; its weights come through a ring of shared memory
// (weight_ring.cuh) that runs on across row tiles, a slot for each row tile and stage.
// The activation rows lie in shared memory in fragment order (STAGED), or come through L1 where
// they do not fit; a SINGLE row lies there as it is and stands in all columns of the matrix
// instruction. A row's sums run over the columns in ascending tiles whatever other rows there
// are, and begin anew every SEGMENT tiles; those are added in order, as gemv_nvfp4's warps' are.
//
// PRECOND: H a multiple of 8, x 16-byte aligned, V a multiple of 16; at most 16 rows a block
// (blockIdx.y). Dynamic shared memory: the rings, then STAGED * COLUMN_TILES * BLOCKS * 1024 bytes,
// with SINGLE an eighth of that.
// Constants: COLUMNS (H), COLUMN_TILES, WARPS, BLOCKS, SINGLE, STAGED, SEGMENT, MIN_BLOCKS, ROW_TILES,
// STAGE_TILES and STAGES (slots, a multiple of ROW_TILES) of a ring.

#include "weight_ring.cuh"

#define STAGED_LANES (SINGLE ? 4 : WARP)         // that have parts of the rows of their own

// What a warp requests next.
struct Requests {
    Source from[ROW_TILES];
    int row_tile, stage;
    u32 filled;                  // the slot that it goes into
};

extern "C" __global__ void __launch_bounds__(WARPS * WARP, MIN_BLOCKS)
head_nvfp4(float* __restrict__ logits, const u16* x, const uint4* __restrict__ codes,
           const u32* __restrict__ scales, const float* __restrict__ row_scales, int num_rows,
           int num_row_tiles, int vocab_size, float cap) {
    uint4* staged = (uint4*)(weight_rings + WARPS * RING_BYTES);     // [tile][m][half][lane]
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int first_row = blockIdx.y * 16, stride = gridDim.x * WARPS * ROW_TILES;
    int row_tile = (blockIdx.x * WARPS + warp) * ROW_TILES;
    allow_next_kernel();
    const Slots slots = slots_of(warp, lane);
    Requests next = {{}, row_tile - stride, ITEM_STAGES, 0};
    auto request = [&]() {               // the next stage of ROW_TILES row tiles
        if (next.stage == ITEM_STAGES) {
            next.stage = 0;
            next.row_tile += stride;
#pragma unroll
            for (int r = 0; r < ROW_TILES; ++r)
                next.from[r] = source_at(codes, scales, row_scales,
                                         (u64)(next.row_tile + r) * COLUMN_TILES,
                                         next.row_tile + r, lane);
        }
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) {
            if (next.row_tile + r < num_row_tiles)
                request_stage(slots, next.filled, next.from[r], next.stage, lane);
            next.filled = next_slot(next.filled);
        }
        ++next.stage;
        commit_copies();
    };
#pragma unroll
    for (int i = 0; i < STAGES / ROW_TILES - 1; ++i) request();
    wait_for_previous_kernel();

    const u16* rows[BLOCKS];
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m) {
        int row = SINGLE ? 0 : first_row + 8 * m + g;
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
                if (lane < STAGED_LANES)
                    staged[((tile * BLOCKS + m) * 2 + h) * STAGED_LANES + lane] = part[m].half[h];
    }
    __syncthreads();
#endif
    u32 read = 0;
    for (; row_tile < num_row_tiles; row_tile += stride) {
        float acc[ROW_TILES][2][BLOCKS][4] = {}, total[ROW_TILES][BLOCKS][4] = {};
        int left = SEGMENT;
        u32 slot[ROW_TILES];
        for (int stage = 0; stage < ITEM_STAGES; ++stage) {
            wait_for_copies<STAGES / ROW_TILES - 2>();
            __syncwarp();        // what other lanes copied is there, and they have read the slot
            request();           // that is filled now
            WeightTile w[ROW_TILES];
#pragma unroll
            for (int r = 0; r < ROW_TILES; ++r) {
                slot[r] = read;
                read = next_slot(read);
                w[r] = read_tile(slots, slot[r], 0);
            }
#pragma unroll
            for (int i = 0; i < STAGE_TILES; ++i) {
                const int tile = stage * STAGE_TILES + i;
                if (COLUMN_TILES % STAGE_TILES != 0 && tile >= COLUMN_TILES) continue;
                ActivationTile part[BLOCKS];
#if STAGED
#pragma unroll
                for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
                    for (int h = 0; h < 2; ++h)
                        part[m].half[h] = staged[((tile * BLOCKS + m) * 2 + h) * STAGED_LANES
                                                 + lane % STAGED_LANES];
#else
                load_activation_tile<BLOCKS>(part, rows, t, tile, COLUMNS);
#endif
#pragma unroll
                for (int r = 0; r < ROW_TILES; ++r) {
                    const WeightTile now = w[r];
                    if (i + 1 < STAGE_TILES) w[r] = read_tile(slots, slot[r], i + 1);
                    multiply_tile<BLOCKS>(acc[r], now, part);
                }
                if (--left == 0 || tile == COLUMN_TILES - 1) {
                    left = SEGMENT;
#pragma unroll
                    for (int r = 0; r < ROW_TILES; ++r)
#pragma unroll
                        for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
                            for (int j = 0; j < 4; ++j) {
                                total[r][m][j] += acc[r][0][m][j] + acc[r][1][m][j];
                                acc[r][0][m][j] = acc[r][1][m][j] = 0.0f;
                            }
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROW_TILES; ++r) {
            const float2 scale = read_row_scales(slots, slot[r], lane);
            if (ROW_TILES > 1 && row_tile + r >= num_row_tiles) continue;
#pragma unroll
            for (int m = 0; m < BLOCKS; ++m) {
#pragma unroll
                for (int j = 0; j < 4; j += SINGLE ? 2 : 1) {
                    int row = first_row + 8 * m + 2 * t + (j & 1);
                    int id = (row_tile + r) * 16 + g + 8 * (j >> 1);
                    float z = total[r][m][j] * (j >> 1 ? scale.y : scale.x);
                    if (row < num_rows)
                        logits[(u64)row * vocab_size + id] = cap * tanhf(z / cap);
                }
            }
        }
    }
}
