// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// What joins a drafter to its target, one entry each:
//   draft_tap       features[t, column ..] = bf16(residual[t]): a tapped layer's output
//   draft_keep      pages[slot of row t] = normed[t]: the state that an assistant starts from
//   draft_join      x[b] = (bf16(table[token_ids[b]] * scale), state): an assistant's input; the
//                   state is that of the last key's slot (FROM_PAGES), or row b of `states`
//   draft_add_norm  residual += branch, or = branch (MODE 1), or is left out (MODE 2);
//                   normed = rms(residual; weight)
//
// residual (T, H) f32; features (T, N) bf16; normed, branch, states (T, H) bf16;
// pages (P, S, H) bf16; sequences (T) i32, -1 for padding; positions, starts i32;
// page_table (B, max_pages) i32; table (V, H) bf16; x (B, 2 H) bf16; weight (H) f32
//
// Bytes moved: the rows once in and once out. Bound by latency. One block per row, 8 numbers a
// thread.
//
// PRECOND: H a multiple of 8 and at most 8,192; all rows 16-byte aligned.
// Constants: H, S, FROM_PAGES, MODE; those of other entries than the one that is launched are 1.

#define THREADS ((H / 8 + WARP - 1) / WARP * WARP)
#define WARPS (THREADS / WARP)

struct Eight {
    float x[8];
};

__device__ __forceinline__ Eight unpacked(const uint4& v) {
    const u32 pairs[4] = {v.x, v.y, v.z, v.w};
    Eight row;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        row.x[2 * i] = bf16_low(pairs[i]);
        row.x[2 * i + 1] = bf16_high(pairs[i]);
    }
    return row;
}

__device__ __forceinline__ void store_eight(u16* to, const Eight& r) {
    store_vector(to, make_uint4(pack_bf16(r.x[0], r.x[1]), pack_bf16(r.x[2], r.x[3]),
                                pack_bf16(r.x[4], r.x[5]), pack_bf16(r.x[6], r.x[7])));
}

__device__ __forceinline__ Eight load_residual(const float* from) {
    const uint4 a = load_activations(from), b = load_activations(from + 4);
    return {{__uint_as_float(a.x), __uint_as_float(a.y), __uint_as_float(a.z),
             __uint_as_float(a.w), __uint_as_float(b.x), __uint_as_float(b.y),
             __uint_as_float(b.z), __uint_as_float(b.w)}};
}

__device__ __forceinline__ u64 slot_of(const int* page_table, int sequence, int position,
                                       int max_pages) {
    return (u64)page_table[(u64)sequence * max_pages + position / S] * S + position % S;
}

extern "C" __global__ void __launch_bounds__(THREADS)
draft_tap(u16* __restrict__ features, const float* residual, int row_size, int first) {
    const int column = threadIdx.x * 8;
    allow_next_kernel();
    wait_for_previous_kernel();
    if (column >= H) return;
    store_eight(features + (u64)blockIdx.x * row_size + first + column,
                load_residual(residual + (u64)blockIdx.x * H + column));
}

extern "C" __global__ void __launch_bounds__(THREADS)
draft_keep(u16* __restrict__ pages, const u16* normed, const int* __restrict__ sequences,
           const int* __restrict__ positions, const int* __restrict__ page_table, int max_pages) {
    const int column = threadIdx.x * 8, sequence = sequences[blockIdx.x];
    allow_next_kernel();
    wait_for_previous_kernel();
    if (column >= H || sequence < 0) return;
    const u64 slot = slot_of(page_table, sequence, positions[blockIdx.x], max_pages);
    store_vector(pages + slot * H + column,
                 load_activations(normed + (u64)blockIdx.x * H + column));
}

extern "C" __global__ void __launch_bounds__(THREADS)
draft_join(u16* __restrict__ x, const u16* states, const int* token_ids,
           const int* __restrict__ starts, const int* __restrict__ page_table,
           const u16* __restrict__ table, int max_pages, float scale) {
    const int column = threadIdx.x * 8;
    allow_next_kernel();
    wait_for_previous_kernel();
    if (column >= H) return;
    const int token = (int)load_activation_word(token_ids + blockIdx.x);
    uint4 embedded = make_uint4(0, 0, 0, 0);
    if (token >= 0) embedded = *(const uint4*)(table + (u64)token * H + column);
    Eight row = unpacked(embedded);
#pragma unroll
    for (int i = 0; i < 8; ++i) row.x[i] *= scale;
    u64 at = blockIdx.x;
    if (FROM_PAGES) {
        at = slot_of(page_table, blockIdx.x, max(starts[blockIdx.x] - 1, 0), max_pages);
    }
    u16* to = x + (u64)blockIdx.x * (2 * H) + column;
    store_eight(to, row);
    store_vector(to + H, load_activations(states + at * H + column));
}

extern "C" __global__ void __launch_bounds__(THREADS)
draft_add_norm(float* residual, u16* __restrict__ normed, const u16* branch,
               const float* weight, float eps) {
    __shared__ float room[WARPS];
    const int column = threadIdx.x * 8;
    const u64 at = (u64)blockIdx.x * H + column;
    allow_next_kernel();
    Eight scale = {};
    if (column < H) scale = load_residual(weight + column);
    wait_for_previous_kernel();
    Eight row = {};
    float sum = 0.0f;
    if (column < H) {
        row = unpacked(load_activations(branch + at));
        if (MODE == 0) {
            const Eight before = load_residual(residual + at);
#pragma unroll
            for (int i = 0; i < 8; ++i) row.x[i] += before.x[i];
        }
        if (MODE != 2) {
            store_vector(residual + at, make_float4(row.x[0], row.x[1], row.x[2], row.x[3]));
            store_vector(residual + at + 4, make_float4(row.x[4], row.x[5], row.x[6], row.x[7]));
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = fmaf(row.x[i], row.x[i], sum);
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = sum;
    __syncthreads();
    sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) sum += room[w];
    if (column >= H) return;
    const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(sum / H + eps));
#pragma unroll
    for (int i = 0; i < 8; ++i) row.x[i] = row.x[i] * inverse * scale.x[i];
    store_eight(normed + at, row);
}
