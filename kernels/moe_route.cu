// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// moe_route: z = x W^T over all experts; the K largest z of a row, ties to the lowest id, best
// first; weights = softmax of those K, times per_expert_scale. (moe_route_add.cu does what stands in
// front of it, too.)
//
// expert_ids     (T, K) i32, -1 for padding rows; expert_weights (T, K) f32, 0 for padding rows
// x              (T, H) bf16: the residual's norm with router.scale * H^(-1/2) as its weight
// w              (PARTS, E, H) bf16, whose sum is W: what bf16 does not hold takes several;
//                per_expert_scale (E) f32
// sequences      (T) i32, -1 for padding rows
// scores         (row tiles, SPLITS, 16, E) f32: scratch
// tickets        (row tiles) u32: scratch, zero before and after every launch
//
// Bytes moved: PARTS E H 2 of weights, T H 2 of rows. Bound by the latency of one read, the
// exchange between blocks and K rounds of a maximum.
// blockIdx: x 8 experts, y one of SPLITS parts of H, z a tile of 16 rows. A block's warps share
// its columns, UNITS runs of 32 each; one matrix instruction takes 16 rows and 8 experts. Sums go
// over a warp's columns, then the warps, then the parts in order, a cut that depends on H alone.
// The block that comes last for its rows adds the parts and chooses: one warp per row, expert e in
// lane e % 32, or for a row alone the whole block.
//
// PRECOND: H a multiple of 32; E a multiple of 8 and at most 1,024; K <= 32 and K <= E.
// Constants: H, E, K, SPLITS, UNITS, PARTS; SPLITS * 8 * UNITS * 32 >= H.

#define WARPS 8
#define ROWS 16
#define WARP_ROWS (ROWS / WARPS)

#include "expert_choice.cuh"
#include "tickets.cuh"

// One row's choice by one warp. z: (SPLITS, 16, E) at this row.
__device__ __forceinline__ void choose(int* expert_ids, float* expert_weights, const float* z,
                                       const float (&scales)[PER_LANE], int lane) {
    float value[PER_LANE];
    u32 keys[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        const int expert = i * WARP + lane;
        value[i] = 0.0f;
        keys[i] = 0;
        if (expert < E) {
#pragma unroll
            for (int s = 0; s < SPLITS; ++s) value[i] += load_result(z + s * ROWS * E + expert);
            keys[i] = order_key(value[i]);
        }
    }
    int my_id = 0;                       // lane k ends with the k-th expert and its z
    float my_z = 0.0f, best = 0.0f;
#pragma unroll
    for (int k = 0; k < K; ++k) {
        u32 most = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) most = max(most, keys[i]);
        most = __reduce_max_sync(FULL_MASK, most);
        u32 own = 0xFFFFFFFFu;
        float own_z = 0.0f;
#pragma unroll
        for (int i = PER_LANE - 1; i >= 0; --i) {
            if (keys[i] == most) {
                own = i * WARP + lane;
                own_z = value[i];
            }
        }
        const u32 id = __reduce_min_sync(FULL_MASK, own);
        const float z_k = __shfl_sync(FULL_MASK, own_z, id % WARP);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            keys[i] = i * WARP + lane == id ? 0 : keys[i];
        }
        if (k == 0) best = z_k;
        if (lane == k) {
            my_id = id;
            my_z = z_k;
        }
    }
    finish(expert_ids, expert_weights, my_id, my_z, best, scales, lane);
}

__device__ __forceinline__ uint4 load_part(const u16* x, int row, int num_rows, int column) {
    if (row >= num_rows || column >= H) return make_uint4(0, 0, 0, 0);
    return load_activations(x + (u64)row * H + column);
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP)
moe_route(int* __restrict__ expert_ids, float* __restrict__ expert_weights, float* scores,
          u32* tickets, const u16* x, const u16* __restrict__ w,
          const float* __restrict__ per_expert_scale, const int* sequences, int num_rows) {
    __shared__ __align__(16) float parts[WARPS][ROWS][8];
    __shared__ u32 ticket, zero;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int first_row = blockIdx.z * ROWS;
    const int first_column = (blockIdx.y * WARPS + warp) * UNITS * 32 + t * 8;
    allow_next_kernel();
    uint4 weights[UNITS][PARTS];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const int column = first_column + u * 32;
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
            weights[u][p] = make_uint4(0, 0, 0, 0);
            if (column < H)
                weights[u][p] = load_activations(
                    w + ((u64)p * E + blockIdx.x * 8 + g) * H + column);
        }
    }
    float scales[PER_LANE];              // of the experts that this lane chooses among, should it
    load_scales(scales, per_expert_scale, lane);
    if (threadIdx.x == 0) zero = 0;
    wait_for_previous_kernel();
    uint4 low[UNITS], high[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const int column = first_column + u * 32;
        low[u] = load_part(x, first_row + g, num_rows, column);
        high[u] = load_part(x, first_row + 8 + g, num_rows, column);
    }
    int sequence[WARP_ROWS];             // of the rows that this warp chooses for, should it
#pragma unroll
    for (int i = 0; i < WARP_ROWS; ++i) {
        const int row = first_row + warp + i * WARPS;
        sequence[i] = row < num_rows ? (int)load_activation_word(sequences + row) : -1;
    }
    const int alone = (int)load_activation_word(sequences);      // of row 0
    // The assembler would request each part when the one before is multiplied. It moves no load
    // across a barrier, and nothing that needs what is read behind it (0) before it.
    __syncthreads();
    const u32 none = *(volatile u32*)&zero;
    float sums[4], others[4];            // two chains of products
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = others[i] = 0.0f;
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
            const uint4& b = weights[u][p];
            mma_bf16(sums, low[u].x, high[u].x, low[u].y, high[u].y, b.x | none, b.y | none);
            mma_bf16(others, low[u].z, high[u].z, low[u].w, high[u].w, b.z | none, b.w | none);
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) parts[warp][g + i / 2 * 8][2 * t + i % 2] = sums[i] + others[i];
    __syncthreads();
    float* z = scores + (u64)blockIdx.z * SPLITS * ROWS * E;
    if (threadIdx.x < ROWS * 8) {
        const int row = threadIdx.x / 8, expert = threadIdx.x % 8;
        float sum = 0.0f;
#pragma unroll
        for (int v = 0; v < WARPS; ++v) sum += parts[v][row][expert];
        z[((u64)blockIdx.y * ROWS + row) * E + blockIdx.x * 8 + expert] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) ticket = take_ticket(tickets + blockIdx.z);
    __syncthreads();
    if (ticket != gridDim.x * gridDim.y - 1) return;
    if (threadIdx.x == 0) tickets[blockIdx.z] = 0;
    if (TOGETHER && num_rows == 1 && alone >= 0) {
        u32* keys = (u32*)parts;         // and what choose_together needs behind them
        const int expert = threadIdx.x % E;
        float value = 0.0f;
        if (threadIdx.x < SHARES * E) {
#pragma unroll
            for (int s = 0; s < SPLITS; ++s) value += load_result(z + s * ROWS * E + expert);
        }
        choose_together(expert_ids, expert_weights, value, scales, keys, keys + E,
                        (float2*)(keys + (1 + SHARES) * E));
        return;
    }
#pragma unroll
    for (int i = 0; i < WARP_ROWS; ++i) {
        const int r = warp + i * WARPS;
        const u64 row = first_row + r;
        if (row >= num_rows) break;
        if (sequence[i] >= 0) {
            choose(expert_ids + row * K, expert_weights + row * K, z + r * E, scales, lane);
        } else if (lane < K) {
            expert_ids[row * K + lane] = -1;
            expert_weights[row * K + lane] = 0.0f;
        }
    }
}
