// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// moe_route: z = x W^T over all experts; the K largest z of a row, ties to the lowest id, best
// first; weights = softmax of those K, times per_expert_scale.
//
// expert_ids     (T, K) i32, -1 for padding rows; expert_weights (T, K) f32, 0 for padding rows
// x              (T, H) bf16: the residual's norm with router.scale * H^(-1/2) as its weight
// w              (PARTS, E, H) bf16, whose sum is W: what bf16 does not hold takes several;
//                per_expert_scale (E) f32
// sequences      (T) i32, -1 for padding rows
// scores         (row tiles, SPLITS, 16, E) f32, or for moe_route_add (T, SPLITS, E): scratch
// tickets        (row tiles) or (T) u32: scratch, zero before and after every launch
//
// Bytes moved: PARTS E H 2 of weights, T H 2 of rows. Bound by the latency of one read, the
// exchange between blocks and K rounds of a maximum.
// blockIdx: x 8 experts, y one of SPLITS parts of H, z a tile of 16 rows. A block's warps share
// its columns, UNITS runs of 32 each; one matrix instruction takes 16 rows and 8 experts. Sums go
// over a warp's columns, then the warps, then the parts in order, a cut that depends on H alone.
// The block that comes last for its rows adds the parts and chooses: one warp per row, expert e in
// lane e % 32, or for a row alone the whole block.
//
// moe_route_add: rms_norm_add of each row first, x = (x + rms(a; wa)) * scale (T, H) f32 in place,
// normed_i (T, H) bf16 = rms(x; w_i), and the router's rms(x; routed) in shared memory.
// blockIdx: x 8 EIGHTS experts, y a part of H, z a row. Every block of a row does its norms, in the
// order of sums of rms_norm.cu; the last one writes them.
//
// PRECOND: H a multiple of 32; E a multiple of 8 and at most 1,024 (256); K <= 32 and K <= E.
// Constants: H, E, K, SPLITS, UNITS, PARTS; SPLITS * 8 * UNITS * 32 >= H; of moe_route_add also
// ADD (1), EIGHTS and MIN_BLOCKS resident on a multiprocessor.

#include "row_norms.cuh"
#include "tickets.cuh"

#ifndef ADD
#define ADD 0
#endif

#ifndef EIGHTS
#define EIGHTS 1
#endif

#define WARPS 8
#define ROWS 16
#define ROWS_OF_BLOCK (ADD ? 1 : ROWS)
#define PER_LANE ((E + WARP - 1) / WARP)
#define WARP_ROWS (ROWS / WARPS)
#define TOGETHER (E <= WARPS * WARP)     // threads for all experts of a row
#define SHARES (TOGETHER && E <= WARPS * WARP / 2 ? 2 : 1)

// Order of floats as order of integers; NaN is the lowest number, 0 none at all.
__device__ __forceinline__ u32 order_key(float x) {
    const u32 bits = __float_as_uint(x);
    if (!(x == x)) return 1;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The weights of the experts that lanes 0 .. K - 1 of a warp have, best first, and both written.
__device__ __forceinline__ void finish(int* expert_ids, float* expert_weights, int my_id,
                                       float my_z, float best, const float (&scales)[PER_LANE],
                                       int lane) {
    const float e = expf(my_z - best);
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < K; ++k) sum += __shfl_sync(FULL_MASK, e, k);
    float own_scale = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        const float other = __shfl_sync(FULL_MASK, scales[i], my_id % WARP);
        if (my_id / WARP == i) own_scale = other;
    }
    if (lane < K) {
        expert_ids[lane] = my_id;
        expert_weights[lane] = e / sum * own_scale;
    }
}

// One row's choice by one warp. z: (SPLITS, ROWS_OF_BLOCK, E) at this row.
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
            for (int s = 0; s < SPLITS; ++s) value[i] += load_result(z + s * ROWS_OF_BLOCK * E + expert);
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

// The same by the whole block, for a row alone: an expert's place is the number of those before it,
// counted by SHARES threads each. keys, counts (SHARES E) and chosen (K) lie in shared memory.
__device__ __forceinline__ void choose_together(int* expert_ids, float* expert_weights,
                                                const float* z, const float (&scales)[PER_LANE],
                                                u32* keys, u32* counts, float2* chosen) {
    const int expert = threadIdx.x % E, share = threadIdx.x / E, lane = threadIdx.x % WARP;
    float value = 0.0f;
    if (share < SHARES) {
#pragma unroll
        for (int s = 0; s < SPLITS; ++s) value += load_result(z + s * ROWS_OF_BLOCK * E + expert);
        if (share == 0) keys[expert] = order_key(value);
    }
    __syncthreads();
    if (share < SHARES) {
        const u32 own = keys[expert];
        const int first = share * (E / SHARES);
        u32 count = 0;
#pragma unroll 8
        for (int j = 0; j < E / SHARES; j += 4) {
            const uint4 four = *(const uint4*)(keys + first + j);
            const u32 others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 4; ++i)      // an equal one of a lower id comes before it too
                count += others[i] > (first + j + i < expert ? own - 1 : own);
        }
        counts[share * E + expert] = count;
    }
    __syncthreads();
    if (share == 0) {
        u32 place = 0;
#pragma unroll
        for (int other = 0; other < SHARES; ++other) place += counts[other * E + expert];
        if (place < K) chosen[place] = make_float2(__int_as_float(expert), value);
    }
    __syncthreads();
    if (threadIdx.x < WARP) {
        const float2 mine = chosen[lane < K ? lane : 0];
        finish(expert_ids, expert_weights, __float_as_int(mine.x), mine.y, chosen[0].y, scales,
               lane);
    }
}

__device__ __forceinline__ uint4 load_part(const u16* x, int row, int num_rows, int column) {
    if (row >= num_rows || column >= H) return make_uint4(0, 0, 0, 0);
    return load_activations(x + (u64)row * H + column);
}

// What moe_route_add has in the place of x: rms_norm_add's arguments, at the block's row.
struct Half {
    float* x;
    u16 *normed_0, *normed_1;
    const u16* a;
    const float *wa, *w_0, *w_1, *routed;
    float eps, scale;
};

#if ADD
#define ROW_WARPS ((H / 8 + WARP - 1) / WARP)            // as rms_norm.cu has them: sums by warp
#define ROUNDS ((ROW_WARPS + WARPS - 1) / WARPS)         // of this block, for them
#define ROW_SIZE (ROW_WARPS * WARP * 8)
// Weights of the norms wait in shared memory where the experts' need the registers.
#define STAGED (EIGHTS > 1)

__device__ __forceinline__ float sum_of_warps(const float (&sums)[ROUNDS], float* room, int warp) {
#pragma unroll
    for (int n = 0; n < ROUNDS; ++n) {
        const float sum = warp_sum(sums[n]);
        if (threadIdx.x % WARP == 0 && warp + n * WARPS < ROW_WARPS) room[warp + n * WARPS] = sum;
    }
    __syncthreads();
    float sum = 0.0f;
    for (int w = 0; w < ROW_WARPS; ++w) sum += room[w];
    return sum;
}

__device__ __forceinline__ int column_of(int n) { return (threadIdx.x + n * WARPS * WARP) * 8; }

__device__ __forceinline__ Row kept_row(const float* kept, int column) {
    Row r = {};
    if (column < H) {
        const float4 low = *(const float4*)(kept + column), high = *(const float4*)(kept + column + 4);
        r = {{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}};
    }
    return r;
}

// x + rms(a) into `kept` and its norm for the router into `row`, both in shared memory; `room`: two
// sums a warp of a row. The new row's inverse norm. A barrier must follow.
__device__ __forceinline__ float add_row(const Half& half, const Row (&wa)[ROUNDS],
                                         const Row (&routed)[ROUNDS], float* kept, float* staged,
                                         u16* row, float* room, int warp) {
    Row residual[ROUNDS], branch[ROUNDS];
    float sums[ROUNDS];
#pragma unroll
    for (int n = 0; n < ROUNDS; ++n) {
        residual[n] = load_f32(half.x, column_of(n));
        branch[n] = load_bf16(half.a, column_of(n));
    }
#pragma unroll
    for (int n = 0; n < ROUNDS; ++n) sums[n] = squares(branch[n]);
    const float inverse = inverse_rms(sum_of_warps(sums, room, warp), half.eps);
#pragma unroll
    for (int n = 0; n < ROUNDS; ++n) {
        const Row normed = scaled(branch[n], inverse,
                                  STAGED ? kept_row(kept, column_of(n)) : wa[n]);
#pragma unroll
        for (int i = 0; i < 8; ++i)
            residual[n].x[i] = __fmul_rn(__fadd_rn(residual[n].x[i], normed.x[i]), half.scale);
        sums[n] = squares(residual[n]);
        store_f32(kept, residual[n], column_of(n));      // for this very thread
    }
    const float new_inverse = inverse_rms(sum_of_warps(sums, room + ROW_WARPS, warp), half.eps);
#pragma unroll
    for (int n = 0; n < ROUNDS; ++n)
        store_bf16(row, scaled(residual[n], new_inverse,
                               STAGED ? kept_row(staged, column_of(n)) : routed[n]),
                   column_of(n));
    return new_inverse;
}

#endif

__device__ __forceinline__ void route(int* __restrict__ expert_ids,
                                      float* __restrict__ expert_weights, float* scores,
                                      u32* tickets, const u16* x, const u16* __restrict__ w,
                                      const float* __restrict__ per_expert_scale,
                                      const int* sequences, int num_rows, const Half& half,
                                      float (&parts)[WARPS][ROWS][8], u32& ticket, u32& zero,
                                      float* kept, float* staged, u16* new_row, float* room) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int first_row = blockIdx.z * ROWS;
    const int first_column = (blockIdx.y * WARPS + warp) * UNITS * 32 + t * 8;
    allow_next_kernel();
    uint4 weights[UNITS][PARTS][EIGHTS];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const int column = first_column + u * 32;
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
#pragma unroll
            for (int e = 0; e < EIGHTS; ++e) {
                const int expert = (blockIdx.x * EIGHTS + e) * 8 + g;
                weights[u][p][e] = make_uint4(0, 0, 0, 0);
                if (column < H && expert < E)
                    weights[u][p][e] = load_activations(w + ((u64)p * E + expert) * H + column);
            }
        }
    }
    float scales[PER_LANE];              // of the experts that this lane chooses among, should it
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        const int expert = i * WARP + lane;
        scales[i] = expert < E ? __uint_as_float(load_activation_word(per_expert_scale + expert))
                               : 0.0f;
    }
    if (threadIdx.x == 0) zero = 0;
#if ADD
    Row wa[ROUNDS], routed[ROUNDS];
#pragma unroll
    for (int n = 0; n < ROUNDS; ++n) {
        wa[n] = load_weight(half.wa, column_of(n));
        routed[n] = load_weight(half.routed, column_of(n));
        if (STAGED) {
            store_f32(kept, wa[n], column_of(n));
            store_f32(staged, routed[n], column_of(n));
        }
    }
    const int alone = (int)load_activation_word(sequences + blockIdx.z);
    wait_for_previous_kernel();
    const float inverse = add_row(half, wa, routed, kept, staged, new_row, room, warp);
    __syncthreads();
#else
    wait_for_previous_kernel();
#endif
    uint4 low[UNITS], high[UNITS];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const int column = first_column + u * 32;
#if ADD
        low[u] = high[u] = make_uint4(0, 0, 0, 0);
        if (g == 0 && column < H) low[u] = *(const uint4*)(new_row + column);
#else
        low[u] = load_part(x, first_row + g, num_rows, column);
        high[u] = load_part(x, first_row + 8 + g, num_rows, column);
#endif
    }
#if ADD
    const u32 none = 0;
#else
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
#endif
    float sums[EIGHTS][4], others[EIGHTS][4];        // two chains of products
#pragma unroll
    for (int e = 0; e < EIGHTS; ++e) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[e][i] = others[e][i] = 0.0f;
    }
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
#pragma unroll
            for (int e = 0; e < EIGHTS; ++e) {
                const uint4& b = weights[u][p][e];
                mma_bf16(sums[e], low[u].x, high[u].x, low[u].y, high[u].y, b.x | none,
                         b.y | none);
                mma_bf16(others[e], low[u].z, high[u].z, low[u].w, high[u].w, b.z | none,
                         b.w | none);
            }
        }
    }
    // rows times experts of this block's part of H
#pragma unroll
    for (int e = 0; e < EIGHTS; ++e) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float sum = sums[e][i] + others[e][i];
            const int row = g + i / 2 * 8, expert = 2 * t + i % 2;
            if (!ADD) parts[warp][row][expert] = sum;
            else if (row == 0) parts[warp][e][expert] = sum;
        }
    }
    __syncthreads();
    float* z = scores + (u64)blockIdx.z * SPLITS * ROWS_OF_BLOCK * E;
    if (threadIdx.x < (ADD ? EIGHTS : ROWS) * 8) {
        const int place = threadIdx.x / 8;
        const int row = ADD ? 0 : place;
        const int expert = (ADD ? (blockIdx.x * EIGHTS + place) : blockIdx.x) * 8
                           + threadIdx.x % 8;
        float sum = 0.0f;
#pragma unroll
        for (int v = 0; v < WARPS; ++v) sum += parts[v][place][threadIdx.x % 8];
        if (expert < E) z[((u64)blockIdx.y * ROWS_OF_BLOCK + row) * E + expert] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) ticket = take_ticket(tickets + blockIdx.z);
    __syncthreads();
    if (ticket != gridDim.x * gridDim.y - 1) return;
    if (threadIdx.x == 0) tickets[blockIdx.z] = 0;
    u32* keys = (u32*)parts;             // and what choose_together needs behind them
    float2* chosen = (float2*)(keys + (1 + SHARES) * E);
#if ADD
    Row w_0[ROUNDS], w_1[ROUNDS];
#pragma unroll
    for (int n = 0; n < ROUNDS; ++n) {
        w_0[n] = load_weight(half.w_0, column_of(n));
        w_1[n] = load_weight(half.w_1, column_of(n));
    }
    if (alone >= 0) {
        choose_together(expert_ids, expert_weights, z, scales, keys, keys + E, chosen);
    } else if (threadIdx.x < K) {
        expert_ids[threadIdx.x] = -1;
        expert_weights[threadIdx.x] = 0.0f;
    }
    // no block reads the old row any more
#pragma unroll
    for (int n = 0; n < ROUNDS; ++n) {
        const Row now = kept_row(kept, column_of(n));
        store_f32(half.x, now, column_of(n));
        store_bf16(half.normed_0, scaled(now, inverse, w_0[n]), column_of(n));
        store_bf16(half.normed_1, scaled(now, inverse, w_1[n]), column_of(n));
    }
#else
    if (TOGETHER && num_rows == 1 && alone >= 0) {
        choose_together(expert_ids, expert_weights, z, scales, keys, keys + E, chosen);
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
#endif
}

#if ADD

// rms_norm_add with three norms, of which the router's is not written, and the route of each row.
extern "C" __global__ void __launch_bounds__(WARPS * WARP, MIN_BLOCKS)
moe_route_add(int* __restrict__ expert_ids, float* __restrict__ expert_weights, float* scores,
              u32* tickets, float* x, u16* __restrict__ normed_0, u16* __restrict__ normed_1,
              const u16* a, const float* __restrict__ wa, const float* __restrict__ w_0,
              const float* __restrict__ w_1, const float* __restrict__ routed,
              const u16* __restrict__ w, const float* __restrict__ per_expert_scale,
              const int* sequences, float eps, float scale) {
    __shared__ __align__(16) float parts[WARPS][ROWS][8];
    __shared__ __align__(16) float kept[ROW_SIZE];
    __shared__ __align__(16) float staged[STAGED ? ROW_SIZE : 4];
    __shared__ __align__(16) u16 row[ROW_SIZE];
    __shared__ float room[2 * ROW_WARPS];
    __shared__ u32 ticket, zero;
    const u64 first = (u64)blockIdx.z * H;
    const Half half = {x + first, normed_0 + first, normed_1 + first, a + first, wa, w_0, w_1,
                       routed, eps, scale};
    route(expert_ids + blockIdx.z * K, expert_weights + blockIdx.z * K, scores, tickets, 0, w,
          per_expert_scale, sequences, 1, half, parts, ticket, zero, kept, staged, row, room);
}

#else

extern "C" __global__ void __launch_bounds__(WARPS * WARP)
moe_route(int* __restrict__ expert_ids, float* __restrict__ expert_weights, float* scores,
          u32* tickets, const u16* x, const u16* __restrict__ w,
          const float* __restrict__ per_expert_scale, const int* sequences, int num_rows) {
    __shared__ __align__(16) float parts[WARPS][ROWS][8];
    __shared__ u32 ticket, zero;
    route(expert_ids, expert_weights, scores, tickets, x, w, per_expert_scale, sequences, num_rows,
          Half{}, parts, ticket, zero, 0, 0, 0, 0);
}

#endif
