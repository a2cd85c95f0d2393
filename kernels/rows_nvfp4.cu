// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// rows_nvfp4: out = x W^T for 2 to 16 rows x that stay in registers, W in NVFP4, fragment order
//   with HEAD: out = cap * tanh(x W^T / cap) in f32
//
// out        (T, N) bf16, with HEAD f32
// x          (T, M) bf16
// codes, scales  of (N, M) in fragment order
// row_scales (N / 16, 2) f32   of rows 0..7 and 8..15 of each row tile
//
// Bytes moved: N M 9 / 16 of weights, T (N + M) 2 of rows (4 N with HEAD). Bound by reading the
// weights. Block b does row tiles b `each` + min(b, `more`) and on, one more where b < `more`, one
// after the other. Each of K_WARPS warps has its WARP_TILES tiles of all rows in registers and
// reads its part of every row tile through a ring of asynchronous copies. Its totals of a row tile
// go to one of PLACES places, which ADDERS warps of their own add in the order of the parts, and
// store, by turns: so no product waits for a sum, and the warps of a block never meet.
// Operands, sums and their order are those of gemm_nvfp4 and gemv_nvfp4, or head_nvfp4, bit for bit.
//
// Dynamic shared memory, in this order: a ring for each warp; the places.
// PRECOND: M a multiple of 8, x 16-byte aligned; at most 8 BLOCKS rows a block (blockIdx.y);
// K_WARPS * WARP_TILES == COLUMN_TILES, WARP_TILES a multiple of STAGE_TILES, STAGE_TILES at most
// 8, STAGES at least 2, ADDERS at most PLACES (else an adder waits for the second round of a place
// whose first one it takes for it).
// Constants: COLUMNS (M), COLUMN_TILES, K_WARPS, WARP_TILES, BLOCKS (of 8 activation rows: 1 or
// 2), HEAD, STAGE_TILES, STAGES, PLACES, ADDERS, E2M1_HARDWARE.

#include "handover.cuh"
#include "prefill_tile.cuh"

#define STAGE_CODES (STAGE_TILES * TILE_CODE_VECTORS)            // in 16 bytes
#define SCALE_VECTORS (TILE_SCALE_WORDS / 4)                     // of a tile
#define STAGE_VECTORS (STAGE_CODES + STAGE_TILES * SCALE_VECTORS)
#define TOKENS (8 * BLOCKS)
#define TOKEN_STRIDE 20                  // numbers a row of x, so that no bank is met twice
#define TOTAL_SIZE (TOKENS * TOKEN_STRIDE)                       // of one part
#define WARPS (K_WARPS + ADDERS)

static_assert(ADDERS <= PLACES, "an adder would take a place's first round for its second");

#if HEAD
#define OUTPUT float
#else
#define OUTPUT u16
#endif

extern __shared__ __align__(16) uint4 rows_memory[];

extern "C" __global__ void __launch_bounds__(WARPS * WARP, 1)
rows_nvfp4(OUTPUT* __restrict__ out, const u16* x, const uint4* __restrict__ codes,
           const u32* __restrict__ scales, const float* __restrict__ row_scales, int num_tokens,
           int each, int more, int num_outputs, float cap) {
    __shared__ u64 full[PLACES], empty[PLACES];
    const int lane = __shfl_sync(FULL_MASK, threadIdx.x & (WARP - 1), threadIdx.x);
    const int warp = __shfl_sync(FULL_MASK, (int)threadIdx.x / WARP, 0);
    const int block = blockIdx.x, first_token = blockIdx.y * 16;
    const int row_tile = block * each + min(block, more), count = each + (block < more);
    float* totals = (float*)(rows_memory + K_WARPS * STAGES * STAGE_VECTORS);
    if (threadIdx.x == 0)
#pragma unroll
        for (int i = 0; i < PLACES; ++i) {
            open_handover(full + i, K_WARPS);
            open_handover(empty + i, 1);
        }
    allow_next_kernel();
    const int first_tile = warp * WARP_TILES;
    uint4* ring = rows_memory + warp * STAGES * STAGE_VECTORS;
    const u64 start = (u64)row_tile * COLUMN_TILES + first_tile;
    const uint4* next_codes = codes + start * TILE_CODE_VECTORS + lane;
    const uint4* next_scales = (const uint4*)scales + start * SCALE_VECTORS + lane;
    int left = warp < K_WARPS ? count : 0, stage = 0;    // row tiles, and the next one's stage
    auto request = [&](int slot) {
        uint4* to = ring + slot * STAGE_VECTORS + lane;
        if (left > 0) {
#pragma unroll
            for (int i = 0; i < STAGE_TILES; ++i)
                copy_async(to + i * TILE_CODE_VECTORS, next_codes + i * TILE_CODE_VECTORS, true);
            if (lane < STAGE_TILES * SCALE_VECTORS) copy_async(to + STAGE_CODES, next_scales, true);
            const bool last = WARP_TILES == STAGE_TILES || ++stage == WARP_TILES / STAGE_TILES;
            const int on = last ? COLUMN_TILES - WARP_TILES + STAGE_TILES : STAGE_TILES;
            next_codes += on * TILE_CODE_VECTORS;
            next_scales += on * SCALE_VECTORS;
            if (last) stage = 0, --left;
        }
        commit_copies();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) request(i);
    __syncthreads();                     // handovers are open
    wait_for_previous_kernel();

    if (warp < K_WARPS) {
        const int g = lane >> 2, t = lane & 3;
        ActivationTile held[WARP_TILES][BLOCKS];
        const u16* from[BLOCKS];
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m) {
            const int token = first_token + 8 * m + g;
            from[m] = token < num_tokens ? x + (u64)token * COLUMNS + 8 * t : 0;
        }
#pragma unroll
        for (int i = 0; i < WARP_TILES; ++i)
            load_activation_tile<BLOCKS>(held[i], from, t, first_tile + i, COLUMNS);
        int slot = 0, free = STAGES - 1, place = 0;
        u32 parity = 1;                  // of the round of places that was emptied last
        float* own = totals + warp * TOTAL_SIZE + 2 * t * TOKEN_STRIDE + g;
#pragma unroll 1
        for (int r = 0; r < count; ++r) {
            float acc[2][BLOCKS][4] = {};
#pragma unroll
            for (int tile = 0; tile < WARP_TILES; tile += STAGE_TILES) {
                wait_for_copies<STAGES - 2>();
                __syncwarp();            // all lanes' copies, and all have read the free stage
                request(free);
                const uint4* from_stage = ring + slot * STAGE_VECTORS;
#pragma unroll
                for (int i = 0; i < STAGE_TILES; ++i) {
                    WeightTile w;
                    w.codes = from_stage[i * TILE_CODE_VECTORS + lane];
                    w.scales = ((const u32*)(from_stage + STAGE_CODES))[
                        i * TILE_SCALE_WORDS + (lane >> 1)];
                    multiply_tile<BLOCKS>(acc, w, held[tile + i]);
                }
                free = slot;
                slot = slot == STAGES - 1 ? 0 : slot + 1;
            }
            wait_for_handover(empty + place, parity);
#pragma unroll
            for (int m = 0; m < BLOCKS; ++m)
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    own[place * K_WARPS * TOTAL_SIZE + ((j & 1) + 8 * m) * TOKEN_STRIDE
                        + 8 * (j >> 1)] = acc[0][m][j] + acc[1][m][j];
            __syncwarp();
            if (lane == 0) hand_over(full + place);
            if (++place == PLACES) place = 0, parity ^= 1;
        }
    } else {
        const int row = lane & 15, second = lane >> 4;           // of two rows of x
#pragma unroll 1
        for (int r = warp - K_WARPS; r < count; r += ADDERS) {
            const int place = r % PLACES, column = (row_tile + r) * 16 + row;
            const float scale = row_scales[2 * (row_tile + r) + (row >> 3)];
            wait_for_handover(full + place, r / PLACES & 1);
            float sum[TOKENS / 2];
#pragma unroll
            for (int i = 0; i < TOKENS / 2; ++i) {
                const float* of_part = totals + place * K_WARPS * TOTAL_SIZE
                                       + (2 * i + second) * TOKEN_STRIDE + row;
                sum[i] = of_part[0];
#pragma unroll
                for (int part = 1; part < K_WARPS; ++part) sum[i] += of_part[part * TOTAL_SIZE];
            }
            __syncwarp();
            if (lane == 0) hand_over(empty + place);
#pragma unroll
            for (int i = 0; i < TOKENS / 2; ++i) {
                const int token = first_token + 2 * i + second;
                if (token >= num_tokens || column >= num_outputs) continue;
                const float value = sum[i] * scale;
#if HEAD
                out[(u64)token * num_outputs + column] = cap * tanhf(value / cap);
#else
                out[(u64)token * num_outputs + column] = to_bf16(value);
#endif
            }
        }
    }
}
