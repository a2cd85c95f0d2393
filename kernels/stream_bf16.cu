// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// stream_bf16: out = x W^T for few rows, W in bf16 as the checkpoint stores it, as gemm_bf16 with
// the same cut of the columns, the same sums and the same bits, where the activations of a warp's
// columns fit into its registers.
//            with GATED: out = f(x G^T) * (x U^T), w being G above U; f is gelu_tanh (1) or silu (2)
//
// out (T, N) bf16; x (T, M) bf16; w (N, M) bf16, with GATED (2 N, M)
//
// Bytes moved: N M 2 of weights, T (N + M) 2 of rows. Bound by reading the weights.
// A block does some neighbouring row tiles one after the other, of 8 GROUPS weight rows (with GATED
// 8 of G and the same 8 of U), for 16 activation rows (blockIdx.y): block b row tiles b `each` +
// min(b, `more`) and on, one more where b < `more`. Each of its warps has the same WARP_TILES
// columns of all of them: its activations stay in registers, and its weights come through a ring of
// asynchronous copies that does not end with a row tile. The warps meet once, at the end, where
// their totals are added in the order of the warps.
// Weights are the operand of 8 rows and activations that of 16. A lane copies what it multiplies:
// 8 columns of weight row g from each half of a tile, as in NVFP4's order.
//
// Dynamic shared memory: a ring for each warp, then totals, 8 GROUPS for each row tile, warp and row.
//
// PRECOND: M a multiple of 8, w, x and out 16-byte aligned, K_WARPS * WARP_TILES >= COLUMN_TILES.
// Constants: COLUMNS (M), COLUMN_TILES, K_WARPS, WARP_TILES, STAGES (of a ring, at least 2; all but
// one are under way), GROUPS (1 or 2; with GATED 2), BLOCKS (of 8 activation rows: 1 or 2), GATED,
// MIN_BLOCKS.

#include "prefill_tile.cuh"

#define STAGE_BYTES (GROUPS * 2 * WARP * 16)     // a tile: half h of group i in part 2 i + h
#define RING_BYTES (STAGES * STAGE_BYTES)
#define TOTALS (8 * GROUPS)
#define OUTPUT_ROWS (GATED ? 8 : TOTALS)
#define EVEN (COLUMNS % TILE_COLUMNS == 0 && K_WARPS * WARP_TILES == COLUMN_TILES)

extern __shared__ __align__(16) u8 stream_memory[];

// Where a lane's weights are: its row of the first group in a row tile, at the warp's first column.
struct Place {
    const u16* at;
    u64 second;                  // numbers from there to its row of the second group
    int row, column, num_outputs;
};

// Requests tile `tile` of the row tile that is `on` behind the place's, if there is one.
__device__ __forceinline__ void request_tile(u8* to, const Place& from, int on, int tile,
                                             bool any) {
    if (!any) return;
    const u16* at = from.at + (u64)on * OUTPUT_ROWS * COLUMNS + tile * TILE_COLUMNS;
#pragma unroll
    for (int i = 0; i < GROUPS; ++i) {
        const bool row = from.row + on * OUTPUT_ROWS + (GATED ? 0 : 8 * i) < from.num_outputs;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const bool inside = EVEN || from.column + tile * TILE_COLUMNS + 32 * h < COLUMNS;
            copy_async(to + (2 * i + h) * WARP * 16, at + i * from.second + 32 * h, row && inside);
        }
    }
}

extern "C" __global__ void __launch_bounds__(K_WARPS * WARP, MIN_BLOCKS)
stream_bf16(u16* __restrict__ out, const u16* x, const u16* __restrict__ w, int num_tokens,
            int num_outputs, int each, int more) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int block = blockIdx.x, row_tile = block * each + min(block, more);
    const int count = each + (block < more), first_token = blockIdx.y * 16;
    const int tokens = min(num_tokens - first_token, 8 * BLOCKS);
    u8* ring = stream_memory + warp * RING_BYTES + lane * 16;
    float* totals = (float*)(stream_memory + K_WARPS * RING_BYTES);
    allow_next_kernel();
    Place from;
    from.row = row_tile * OUTPUT_ROWS + g;
    from.column = warp * WARP_TILES * TILE_COLUMNS + 8 * t;
    from.at = w + (u64)from.row * COLUMNS + from.column;
    from.second = (u64)(GATED ? num_outputs : 8) * COLUMNS;
    from.num_outputs = num_outputs;
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        request_tile(ring + i * STAGE_BYTES, from, i / WARP_TILES, i % WARP_TILES,
                     i / WARP_TILES < count);
        commit_copies();
    }
    wait_for_previous_kernel();

    // rows g and g + 8; past the last one that one again, whose results nobody stores
    uint4 activations[WARP_TILES][2][BLOCKS];
#pragma unroll
    for (int m = 0; m < BLOCKS; ++m) {
        const u16* own = x + (u64)(first_token + min(8 * m + g, tokens - 1)) * COLUMNS
                         + from.column;
#pragma unroll
        for (int tile = 0; tile < WARP_TILES; ++tile) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int on = tile * TILE_COLUMNS + 32 * h;
                activations[tile][h][m] = make_uint4(0, 0, 0, 0);
                if (EVEN || from.column + on < COLUMNS)
                    activations[tile][h][m] = load_activations(own + on);
            }
        }
    }
    u32 slot = 0, free = (STAGES - 1) * STAGE_BYTES;
#pragma unroll 1
    for (int r = 0; r < count; ++r) {
        float acc[GROUPS][2][4] = {};
#pragma unroll
        for (int tile = 0; tile < WARP_TILES; ++tile) {
            const int on = (tile + STAGES - 1) / WARP_TILES;
            wait_for_copies<STAGES - 2>();       // a lane reads what it copied itself
            request_tile(ring + free, from, on, (tile + STAGES - 1) % WARP_TILES,
                         r + on < count);
            commit_copies();
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                // Of 8 rows both halves are operands at once, rows 0 to 7 and 8 to 15, so that no
                // register holds a zero; the product with the other half's weights is nobody's.
                const uint4& low = activations[tile][BLOCKS == 2 ? h : 0][0];
                const uint4& high = activations[tile][BLOCKS == 2 ? h : 1][BLOCKS - 1];
#pragma unroll
                for (int i = 0; i < GROUPS; ++i) {
                    const uint4 v = *(const uint4*)(ring + slot + (2 * i + h) * WARP * 16);
                    mma_bf16(acc[i][h], low.x, high.x, low.y, high.y, v.x, v.y);
                    mma_bf16(acc[i][h], low.z, high.z, low.w, high.w, v.z, v.w);
                }
            }
            free = slot;
            slot = slot == (STAGES - 1) * STAGE_BYTES ? 0 : slot + STAGE_BYTES;
        }
        from.at += (u64)OUTPUT_ROWS * COLUMNS;
        from.row += OUTPUT_ROWS;
        float* own = totals + (u64)(r * K_WARPS + warp) * tokens * TOTALS + 2 * t;
#pragma unroll
        for (int m = 0; m < BLOCKS; ++m) {
            if (8 * m + g >= tokens) continue;
#pragma unroll
            for (int i = 0; i < GROUPS; ++i) {
                const int other = BLOCKS == 2 ? 2 * m : 2;       // where the second half's are
                *(float2*)(own + (8 * m + g) * TOTALS + 8 * i) =
                    make_float2(acc[i][0][2 * m] + acc[i][1][other],
                                acc[i][0][2 * m + 1] + acc[i][1][other + 1]);
            }
        }
    }
    __syncthreads();
    const int results = tokens * OUTPUT_ROWS;            // of a row tile
    for (int i = threadIdx.x; i < count * results; i += K_WARPS * WARP) {
        const int r = i / results, token = i % results / OUTPUT_ROWS, row = i % OUTPUT_ROWS;
        const int column = (row_tile + r) * OUTPUT_ROWS + row;
        if (column >= num_outputs) continue;
        const float* own = totals + (u64)(r * K_WARPS * tokens + token) * TOTALS + row;
        float value = own[0], up = GATED ? own[8] : 0.0f;
#pragma unroll
        for (int k = 1; k < K_WARPS; ++k) {
            value += own[k * tokens * TOTALS];
            if (GATED) up += own[k * tokens * TOTALS + 8];
        }
#if GATED
        // each product rounds where a kernel of its own would have written it
        value = rounded_to_bf16(value);
        value = (GATED == 1 ? gelu_tanh(value) : value / (1.0f + expf(-value)))
                * rounded_to_bf16(up);
#endif
        out[(u64)(first_token + token) * num_outputs + column] = to_bf16(value);
    }
}
