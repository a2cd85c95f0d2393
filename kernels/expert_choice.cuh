// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// The K largest of a row's z, ties to the lowest id, best first, and their weights: for moe_route.cu
// and moe_route_add.cu.
//
// Constants: E, K; WARPS of a block.

#define PER_LANE ((E + WARP - 1) / WARP)
#define TOGETHER (E <= WARPS * WARP)     // threads for all experts of a row
#define SHARES (E * 4 <= WARPS * WARP && E % 16 == 0 ? 4 : E * 2 <= WARPS * WARP ? 2 : 1)

__device__ __forceinline__ void load_scales(float (&scales)[PER_LANE],
                                            const float* per_expert_scale, int lane) {
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        const int expert = i * WARP + lane;
        scales[i] = expert < E ? __uint_as_float(load_activation_word(per_expert_scale + expert))
                               : 0.0f;
    }
}

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

// One row's choice by the whole block: an expert's place is the number of those before it, counted by
// SHARES threads each. `value`: z of expert threadIdx.x % E, in the threads below SHARES E. keys (E),
// counts (SHARES E) and chosen (K) lie in shared memory, `scales` of all experts in each warp.
__device__ __forceinline__ void choose_together(int* expert_ids, float* expert_weights,
                                                float value, const float (&scales)[PER_LANE],
                                                u32* keys, u32* counts, float2* chosen) {
    const int expert = threadIdx.x % E, share = threadIdx.x / E, lane = threadIdx.x % WARP;
    if (share == 0) keys[expert] = order_key(value);
    __syncthreads();
    if (share < SHARES) {
        const u32 own = keys[expert];
        const int first = share * (E / SHARES);
        // an equal one of a lower id comes before it too; in most warps all ids of the share are
        // lower, or none
        const int warp_first = expert / WARP * WARP;
        const bool lower = first + E / SHARES <= warp_first, mixed = E % WARP != 0
            || (!lower && first < warp_first + WARP);
        const u32 bound = lower ? own - 1 : own;
        u32 count = 0;
        if (mixed) {
            for (int j = 0; j < E / SHARES; j += 4) {
                const uint4 four = *(const uint4*)(keys + first + j);
                const u32 others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    count += others[i] > (first + j + i < expert ? own - 1 : own);
            }
        } else {
#pragma unroll 8
            for (int j = 0; j < E / SHARES; j += 4) {
                const uint4 four = *(const uint4*)(keys + first + j);
                const u32 others[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
                for (int i = 0; i < 4; ++i) count += others[i] > bound;
            }
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
