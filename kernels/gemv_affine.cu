// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// gemv_affine: out = x W^T for one row x, W in MLX affine codes, fragment order.
//   with FORM 1: out = gelu_tanh(bf16(x G^T)) * bf16(x U^T), G and U interleaved by 8 rows
//   with FORM 2: out = cap * tanh(x W^T / cap) in f32, the head
//
// out            (N) bf16, FORM 1 (I), FORM 2 f32
// x              (M) bf16
// words, scales  of (N, M), or (2 I, M), in fragment order (affine_tile.cuh)
//
// Bytes moved: N M BITS / 8 + N M 4 / GROUP of weights, 2 (N + M) of rows. Bound by reading the
// weights. Block b does row tiles b `each` + min(b, `more`) and on, one more where b < `more`, as
// gemv.cuh says. Operands, sums and their order are those of gemm_affine, bit for bit.
//
// RAW: codes enter the matrix instruction as the numbers n 2^-133 that their bits are in bf16, and
// the row is multiplied by 2^64 instead (exact where it is below 2^64), once for all row tiles.
// Widths of two planes have their codes multiplied, as in gemm_affine.
//
// PRECOND: GROUP 32 or 64, M a multiple of GROUP, x 16-byte aligned; those of gemv.cuh.
// Constants: BITS, GROUP, RAW (of 2, 4 or 8 bits), FORM; those of gemv.cuh.

#include "affine_tile.cuh"

#define CODE_VECTORS (TILE_WORDS / 4)
#define SCALE_VECTORS (TILE_SCALES / 4)
#define SUMS TILE_GROUPS
#if RAW
// 2^64, and what the place of a lane's second pair of codes has more than that of its first
#define ROW_POWERS ((64 + 127) << 7 | (64 - RAW_SECOND + 127) << 23)
#else
#define ROW_POWERS 0
#endif

#define FIRST_LANES 1

#include "gemv.cuh"

#if FORM == 2
#define OUTPUT float
#else
#define OUTPUT u16
#endif

// One group: its products, and the step to the totals of rows g and g + 8.
__device__ __forceinline__ void add_group(float (&total)[2], const AffineTile& w, int group,
                                          const ActivationTile& x, float sum) {
    float products[4] = {};
#pragma unroll
    for (int h = TILE_GROUPS == 2 ? group : 0; h <= (TILE_GROUPS == 2 ? group : 1); ++h) {
        u32 a[8];
#if RAW
        raw_codes(a, w, h);
#else
        decode_affine(a, w, h);
#endif
        const uint4& b = x.half[h];
        mma_bf16(products, a[0], a[1], a[2], a[3], b.x, b.y);
        mma_bf16(products, a[4], a[5], a[6], a[7], b.z, b.w);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const u32 pair = w.scales[2 * group + j];
        total[j] = __fmaf_rn(bf16_high(pair), sum, total[j]);
        total[j] = __fmaf_rn(bf16_low(pair), products[2 * j], total[j]);
    }
}

extern "C" __global__ void __launch_bounds__(K_WARPS * WARP, MIN_BLOCKS)
gemv_affine(OUTPUT* __restrict__ out, const u16* x, const u32* __restrict__ words,
            const u32* __restrict__ scales, int each, int more, int num_outputs, float cap) {
    const int lane = own_lane(), warp = own_warp(), t = lane & 3;
    const int block = blockIdx.x, row_tile = block * each + min(block, more);
    const int count = each + (block < more), first_tile = warp * WARP_TILES;
    u8* ring = gemv_memory + warp * RING_BYTES;
    u8* row = gemv_memory + K_WARPS * RING_BYTES + first_tile * ROW_TILE_BYTES;
    float* all_sums = (float*)(gemv_memory + K_WARPS * RING_BYTES + COLUMN_TILES * ROW_TILE_BYTES);
    float* sums = all_sums + first_tile * SUMS;
    float* totals = all_sums + COLUMN_TILES * SUMS;
    if (NEXT == 0) allow_next_kernel();
    const u64 start = (u64)row_tile * COLUMN_TILES + first_tile;
    Requests next = {(const uint4*)words + start * CODE_VECTORS + lane,
                     (const uint4*)scales + start * SCALE_VECTORS + lane, 0, count * WARP_STAGES};
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        request_stage(ring + i * STAGE_BYTES + lane * 16, next, lane);
        commit_copies();
    }
    if (NEXT == 1) allow_next_kernel();
    wait_for_previous_kernel();
    if (NEXT == 2) allow_next_kernel();
    place_row(row, sums, x + first_tile * TILE_COLUMNS, first_tile, lane);

    ActivationTile own_row[ROW_REGISTERS][1] = {};
#if HELD
#pragma unroll
    for (int i = 0; i < WARP_TILES; ++i) read_row(own_row[i][0], row + t * 16, i, lane);
#endif
    u32 slot = 0, free = (STAGES - 1) * STAGE_BYTES;
#pragma unroll 1
    for (int r = 0; r < count; ++r) {
        float total[2] = {};
        if (NEXT == 3 && r == count - 1) allow_next_kernel();
#pragma unroll HELD ? WARP_STAGES : 1
        for (int tile = 0; tile < WARP_TILES; tile += STAGE_TILES) {
            wait_for_copies<STAGES - 2>();
            __syncwarp();                // all lanes' copies, and all have read the free stage
            request_stage(ring + free + lane * 16, next, lane);
            commit_copies();
            const u8* stage = ring + slot;
            const u8* part = row + tile * ROW_TILE_BYTES + t * 16;
#pragma unroll
            for (int i = 0; i < STAGE_TILES; ++i) {
                AffineTile w;
                read_affine(w, stage + i * CODE_VECTORS * 16,
                            stage + STAGE_SCALES + i * SCALE_VECTORS * 16, lane);
                ActivationTile& x_tile = own_row[(HELD ? tile + i : i) % ROW_REGISTERS][0];
                if (!HELD) read_row(x_tile, part, i, lane);
#pragma unroll
                for (int group = 0; group < TILE_GROUPS; ++group)
                    add_group(total, w, group, x_tile, sums[(tile + i) * SUMS + group]);
            }
            free = slot;
            slot = next_slot(slot);
        }
        leave_totals(totals + (r * K_WARPS + warp) * TILE_ROWS, total[0], total[1], lane);
    }
    __syncthreads();

    const int rows_out = FORM == 1 ? 8 : 16;
    for (int i = threadIdx.x; i < count * rows_out; i += K_WARPS * WARP) {
        const int r = i / rows_out, own = i % rows_out, column = (row_tile + r) * rows_out + own;
        if (column >= num_outputs) continue;
        float value = sum_of_warps(totals, r, own);
#if FORM == 2
        out[column] = cap * tanhf(value / cap);
#else
#if FORM == 1
        value = gelu_tanh(rounded_to_bf16(value)) * rounded_to_bf16(sum_of_warps(totals, r,
                                                                                 own + 8));
#endif
        out[column] = to_bf16(value);
#endif
    }
}
