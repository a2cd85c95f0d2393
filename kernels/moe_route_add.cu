// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// moe_route_add: rms_norm_add of up to 16 rows, and moe_route of what comes out. x = (x + rms(a;
// wa)) * scale in place; normed_i = rms(x; w_i); the router's x is rms(x; routed), which is not
// written. The bits are those of rms_norm.cu and moe_route.cu, whose sums run in the same order.
//
// x              (T, H) f32; normed_0, normed_1 (T, H) bf16; a (T, H) bf16
// wa, w_0, w_1, routed (H) f32; the others as in moe_route.cu
// scores, tickets (T, SPLITS, E) f32, (T) u32: scratch, unused in clusters
//
// Bytes moved: T H (8 + 2 + 4) once, PARTS E H 2 of weights, and both again in other blocks, from the
// L2 cache. Bound by latency: two sums over a block, one exchange between blocks, one choice.
// blockIdx.z: a row; all its blocks do its norms, each for 8 EIGHTS experts.
//   CLUSTER 8: the blocks of a row are a cluster. A block has all of H, 8 warps for each of SPLITS
//     parts; its sums go to the first block, which chooses; the others write the row.
//   CLUSTER 1: blockIdx.x experts, y a part of H. The block that comes last adds, chooses and writes.
//
// PRECOND: H a multiple of 32 and at most 4,096; E a multiple of 8 and at most 256; K <= 32, K <= E.
// Constants: H, E, K, SPLITS, UNITS, PARTS; SPLITS * 8 * UNITS * 32 >= H; EIGHTS, CLUSTER,
// MIN_BLOCKS resident on a multiprocessor.

#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ < 900       // which has no clusters
#undef CLUSTER
#define CLUSTER 1
#endif

#define SPLIT_WARPS 8
#define PARTS_HERE (CLUSTER > 1 ? SPLITS : 1)            // of H
#define WARPS (SPLIT_WARPS * PARTS_HERE)
#define ROW_WARPS ((H / 8 + WARP - 1) / WARP)            // as rms_norm.cu has them: sums by warp
#define ROUNDS ((ROW_WARPS + WARPS - 1) / WARPS)         // of this block, for them
#define ROW_SIZE (ROW_WARPS * WARP * 8)
// Weights of the norms wait in shared memory where the experts' need the registers.
#define STAGED (EIGHTS > 1)

#include "expert_choice.cuh"
#include "row_norms.cuh"
#include "tickets.cuh"
#include "cluster.cuh"

// What rms_norm_add takes, at the block's row.
struct Half {
    float* x;
    u16 *normed_0, *normed_1;
    const u16* a;
    const float *wa, *w_0, *w_1, *routed;
    float eps, scale;
};

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
        const float4 low = *(const float4*)(kept + column);
        const float4 high = *(const float4*)(kept + column + 4);
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

__device__ __forceinline__ void write_row(const Half& half, const float* kept, float inverse,
                                          const Row& w_0, const Row& w_1, int column) {
    const Row now = kept_row(kept, column);
    store_f32(half.x, now, column);
    store_bf16(half.normed_0, scaled(now, inverse, w_0), column);
    store_bf16(half.normed_1, scaled(now, inverse, w_1), column);
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP, MIN_BLOCKS) BLOCKS_OF_CLUSTER
moe_route_add(int* __restrict__ expert_ids, float* __restrict__ expert_weights, float* scores,
              u32* tickets, float* x, u16* __restrict__ normed_0, u16* __restrict__ normed_1,
              const u16* a, const float* __restrict__ wa, const float* __restrict__ w_0,
              const float* __restrict__ w_1, const float* __restrict__ routed,
              const u16* __restrict__ w, const float* __restrict__ per_expert_scale,
              const int* sequences, float eps, float scale) {
    __shared__ __align__(16) float kept[ROW_SIZE];
    __shared__ __align__(16) float staged[STAGED ? ROW_SIZE : 4];
    __shared__ __align__(16) u16 new_row[ROW_SIZE];
    __shared__ __align__(16) float parts[WARPS][EIGHTS][8];
    __shared__ __align__(16) u32 keys[E], counts[SHARES * E];
    __shared__ __align__(16) float z_here[SPLITS * E];
    __shared__ float2 chosen[K];
    __shared__ float room[2 * ROW_WARPS];
    __shared__ u32 ticket;
    __shared__ u64 mail;                 // of z_here, in the first block
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const u64 row = blockIdx.z;
    const Half half = {x + row * H, normed_0 + row * H, normed_1 + row * H, a + row * H, wa, w_0,
                       w_1, routed, eps, scale};
    const int first_expert = blockIdx.x * EIGHTS * 8;
    const int split = CLUSTER > 1 ? warp / SPLIT_WARPS : blockIdx.y;
    const int first_column = (split * SPLIT_WARPS + warp % SPLIT_WARPS) * UNITS * 32 + t * 8;
    allow_next_kernel();
    if (CLUSTER > 1 && threadIdx.x == 0) open_mail(&mail, blockIdx.x == 0 ? SPLITS * E * 4 : 0);
    enter_cluster();                     // its blocks may be written to when all are there
    uint4 weights[UNITS][PARTS][EIGHTS];
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const int column = first_column + u * 32;
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
#pragma unroll
            for (int e = 0; e < EIGHTS; ++e) {
                const int expert = first_expert + e * 8 + g;
                weights[u][p][e] = make_uint4(0, 0, 0, 0);
                if (column < H && expert < E)
                    weights[u][p][e] = load_activations(w + ((u64)p * E + expert) * H + column);
            }
        }
    }
    float scales[PER_LANE];
    load_scales(scales, per_expert_scale, lane);
    Row own_wa[ROUNDS], own_routed[ROUNDS];
#pragma unroll
    for (int n = 0; n < ROUNDS; ++n) {
        own_wa[n] = load_weight(wa, column_of(n));
        own_routed[n] = load_weight(routed, column_of(n));
        if (STAGED) {
            store_f32(kept, own_wa[n], column_of(n));
            store_f32(staged, own_routed[n], column_of(n));
        }
    }
    const int sequence = (int)load_activation_word(sequences + row);
    wait_for_cluster();
    wait_for_previous_kernel();
    const float inverse = add_row(half, own_wa, own_routed, kept, staged, new_row, room, warp);
    __syncthreads();
    enter_cluster();                     // this block has read the old row
    float sums[EIGHTS][4], others[EIGHTS][4];        // two chains of products
#pragma unroll
    for (int e = 0; e < EIGHTS; ++e) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[e][i] = others[e][i] = 0.0f;
    }
#pragma unroll
    for (int u = 0; u < UNITS; ++u) {
        const int column = first_column + u * 32;
        uint4 mine = make_uint4(0, 0, 0, 0);             // one row of the sixteen
        if (g == 0 && column < H) mine = *(const uint4*)(new_row + column);
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
#pragma unroll
            for (int e = 0; e < EIGHTS; ++e) {
                const uint4& b = weights[u][p][e];
                mma_bf16(sums[e], mine.x, 0, mine.y, 0, b.x, b.y);
                mma_bf16(others[e], mine.z, 0, mine.w, 0, b.z, b.w);
            }
        }
    }
    if (g == 0) {
#pragma unroll
        for (int e = 0; e < EIGHTS; ++e) {
#pragma unroll
            for (int i = 0; i < 2; ++i) parts[warp][e][2 * t + i] = sums[e][i] + others[e][i];
        }
    }
    __syncthreads();
    Row own_w_0[ROUNDS], own_w_1[ROUNDS];
#if CLUSTER > 1
    if (threadIdx.x < SPLITS * EIGHTS * 8) {
        const int part = threadIdx.x / (EIGHTS * 8), own = threadIdx.x % (EIGHTS * 8);
        float sum = 0.0f;
#pragma unroll
        for (int v = 0; v < SPLIT_WARPS; ++v)
            sum += parts[part * SPLIT_WARPS + v][own / 8][own % 8];
        if (first_expert + own < E)
            send_to_peer(address_in_peer(z_here, 0), part * E + first_expert + own, sum,
                         address_in_peer((float*)&mail, 0));
    }
    // the first block chooses, the others write the row in turns of a warp's columns
    if (blockIdx.x > 0) {
#pragma unroll
        for (int n = 0; n < ROUNDS; ++n) {
            own_w_0[n] = load_weight(w_0, column_of(n));
            own_w_1[n] = load_weight(w_1, column_of(n));
        }
        wait_for_cluster();              // no block reads the old row any more
#pragma unroll
        for (int n = 0; n < ROUNDS; ++n) {
            if ((warp + n * WARPS) % (CLUSTER - 1) + 1 == (int)blockIdx.x)
                write_row(half, kept, inverse, own_w_0[n], own_w_1[n], column_of(n));
        }
        return;
    }
    wait_for_mail(&mail);
    const float* z = z_here;
#else
    float* z = scores + row * SPLITS * E;
    if (threadIdx.x < EIGHTS * 8) {
        float sum = 0.0f;
#pragma unroll
        for (int v = 0; v < WARPS; ++v) sum += parts[v][threadIdx.x / 8][threadIdx.x % 8];
        if (first_expert + (int)threadIdx.x < E)
            z[blockIdx.y * E + first_expert + threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) ticket = take_ticket(tickets + row);
    __syncthreads();
    if (ticket != gridDim.x * gridDim.y - 1) return;
    if (threadIdx.x == 0) tickets[row] = 0;
#pragma unroll
    for (int n = 0; n < ROUNDS; ++n) {
        own_w_0[n] = load_weight(w_0, column_of(n));
        own_w_1[n] = load_weight(w_1, column_of(n));
    }
#endif
    if (sequence >= 0) {
        float value = 0.0f;
        if (threadIdx.x < SHARES * E) {
#pragma unroll
            for (int s = 0; s < SPLITS; ++s) {
                const float* from = z + s * E + threadIdx.x % E;
                value += CLUSTER > 1 ? *from : load_result(from);
            }
        }
        choose_together(expert_ids + row * K, expert_weights + row * K, value, scales, keys, counts,
                        chosen);
    } else if (threadIdx.x < K) {
        expert_ids[row * K + threadIdx.x] = -1;
        expert_weights[row * K + threadIdx.x] = 0.0f;
    }
#if CLUSTER > 1
    wait_for_cluster();                  // whoever arrives waits, too
#else
    // no block reads the old row any more
#pragma unroll
    for (int n = 0; n < ROUNDS; ++n)
        write_row(half, kept, inverse, own_w_0[n], own_w_1[n], column_of(n));
#endif
}
