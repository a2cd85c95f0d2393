// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// gemv_nvfp4: out = x W^T for one row x, W in NVFP4, fragment order.
//   with FORM 1: out = gelu_tanh(bf16(x G^T)) * bf16(x U^T), G and U interleaved by 8 rows
//   with FORM 2: out = cap * tanh(x W^T / cap) in f32, the head
//
// out        (N) bf16, FORM 1 (I), FORM 2 f32
// x          (M) bf16
// codes, scales  of (N, M), or (2 I, M), in fragment order
// row_scales (N / 16, 2) f32   of rows 0..7 and 8..15 of each row tile
//
// Bytes moved: N M 9 / 16 of weights, 2 (N + M) of rows. Bound by reading the weights.
// Block b does row tiles b `each` + min(b, `more`) and on, one more where b < `more`, as gemv.cuh
// says. Operands, sums and their order are those of gemm_nvfp4, or head_nvfp4, bit for bit.
//
// PRECOND: M a multiple of 8, x 16-byte aligned; those of gemv.cuh.
// Constants: FORM, E2M1_HARDWARE; those of gemv.cuh.

#define CODE_VECTORS TILE_CODE_VECTORS
#define SCALE_VECTORS (TILE_SCALE_WORDS / 4)
#define SUMS 0
#define ROW_POWERS 0
#define FIRST_LANES 0                    // 1: a step of the 12B is 2.6 % longer (bench/LOG.md)

#include "gemv.cuh"

#if FORM == 2
#define OUTPUT float
#else
#define OUTPUT u16
#endif

// The scales of output i of a block: of its row, or of those of gate and up.
__device__ __forceinline__ void load_scales(float (&own)[2], const float* of_block, int i) {
    const float* from = of_block + (FORM == 1 ? i / 8 * 2 : i / 8);
    own[0] = __uint_as_float(load_activation_word(from));
    if (FORM == 1) own[1] = __uint_as_float(load_activation_word(from + 1));
}

#if HELD
// The warp's part of the row into the registers of lanes 0 to 3, all requested at once.
__device__ __forceinline__ void hold_row(ActivationTile (&own)[WARP_TILES][1], const u16* x,
                                         int first_tile, int lane) {
    if (lane >= 4) return;
#pragma unroll
    for (int i = 0; i < 2 * WARP_TILES; ++i) {
        const int column = i * 32 + 8 * lane;
        if (COLUMNS % TILE_COLUMNS == 0 || first_tile * TILE_COLUMNS + column < COLUMNS)
            own[i / 2][0].half[i % 2] = load_activations(x + column);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(K_WARPS * WARP, MIN_BLOCKS)
gemv_nvfp4(OUTPUT* __restrict__ out, const u16* x, const uint4* __restrict__ codes,
           const u32* __restrict__ scales, const float* __restrict__ row_scales, int each,
           int more, int num_outputs, float cap) {
    const int lane = own_lane(), warp = own_warp(), t = lane & 3;
    const int block = blockIdx.x, row_tile = block * each + min(block, more);
    const int count = each + (block < more), first_tile = warp * WARP_TILES;
    u8* ring = gemv_memory + warp * RING_BYTES;
    u8* row = gemv_memory + K_WARPS * RING_BYTES + first_tile * ROW_TILE_BYTES;
    float* totals = (float*)(gemv_memory + K_WARPS * RING_BYTES + COLUMN_TILES * ROW_TILE_BYTES);
    if (NEXT == 0) allow_next_kernel();
    const u64 start = (u64)row_tile * COLUMN_TILES + first_tile;
    Requests next = {codes + start * CODE_VECTORS + lane,
                     (const uint4*)scales + start * SCALE_VECTORS + lane, 0, count * WARP_STAGES};
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        request_stage(ring + i * STAGE_BYTES + lane * 16, next, lane);
        commit_copies();
    }
    constexpr int rows_out = FORM == 1 ? 8 : 16;
    // of this thread's first output, and of what it is multiplied with
    float own_scales[2] = {};
    if (threadIdx.x < count * rows_out)
        load_scales(own_scales, row_scales + 2 * row_tile, threadIdx.x);
    if (NEXT == 1) allow_next_kernel();
    wait_for_previous_kernel();
    if (NEXT == 2) allow_next_kernel();
    ActivationTile own_row[ROW_REGISTERS][1] = {};
#if HELD
    hold_row(own_row, x + first_tile * TILE_COLUMNS, first_tile, lane);
#else
    place_row(row, nullptr, x + first_tile * TILE_COLUMNS, first_tile, lane);
#endif
    u32 slot = 0, free = (STAGES - 1) * STAGE_BYTES;
#pragma unroll 1
    for (int r = 0; r < count; ++r) {
        float acc[2][1][4] = {};
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
                WeightTile w;
                w.codes = ((const uint4*)stage)[i * CODE_VECTORS + lane];
                w.scales = ((const u32*)(stage + STAGE_SCALES))[i * TILE_SCALE_WORDS + (lane >> 1)];
                ActivationTile (&x_tile)[1] = own_row[(HELD ? tile + i : i) % ROW_REGISTERS];
                if (!HELD) read_row(x_tile[0], part, i, lane);
                multiply_tile<1>(acc, w, x_tile);
            }
            free = slot;
            slot = next_slot(slot);
        }
        leave_totals(totals + (r * K_WARPS + warp) * TILE_ROWS, acc[0][0][0] + acc[1][0][0],
                     acc[0][0][2] + acc[1][0][2], lane);
    }
    __syncthreads();

    for (int i = threadIdx.x; i < count * rows_out; i += K_WARPS * WARP) {
        const int r = i / rows_out, own = i % rows_out, column = (row_tile + r) * rows_out + own;
        if (column >= num_outputs) continue;
        if (i != threadIdx.x) load_scales(own_scales, row_scales + 2 * row_tile, i);
        float value = sum_of_warps(totals, r, own) * own_scales[0];
#if FORM == 2
        out[column] = cap * tanhf(value / cap);
#else
#if FORM == 1
        const float up = sum_of_warps(totals, r, own + 8) * own_scales[1];
        value = gelu_tanh(rounded_to_bf16(value)) * rounded_to_bf16(up);
#endif
        out[column] = to_bf16(value);
#endif
    }
}
