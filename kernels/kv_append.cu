// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// kv_append: q = rope(rms(q; q_norm)), k = rope(rms(k; k_norm)), v = rms(v) per head, and k and v
// into their pages. Without a v projection (HAS_V 0) v is the same raw k, before norm and rope.
//
// q            (T, Q, D) bf16
// k_pages, v_pages (P, S, KV, D) bf16, or e4m3 of k / k_scale, v / v_scale
// qkv          (T, (Q + KV [+ KV]) D) bf16, the raw projections
// q_norm, k_norm (D) f32
// turns        (PAIRS) u64: 2^64 theta^(-2i / D) / (2 pi), frequency i in turns per position
// sequences    (T) i32: row of page_table, -1 for padding rows (q becomes zero, nothing is kept)
// positions    (T) i32; page_table (B, max_pages) i32
// k_inverse, v_inverse (KV) f32: 1 / k_scale, 1 / v_scale (FP8 only)
//
// rope rotates the pairs (i, i + D / 2), i < PAIRS, by position * frequency i. The product is of
// 64-bit integers, whose overflow drops whole turns: the angle is exact to 2^-46 of a turn at
// position 2^18, and rounds once to f32.
//
// Bytes moved: 2 T (Q + KV [+ KV]) D read, T Q D 2 + 2 T KV D written in the pages' type. Bound by
// latency. One warp per (row, head), 4 in a block; a lane has the columns 8 lane .. + 7, with D
// 512 also 256 above. The sum of squares runs over a lane's columns, then over the warp.
//
// PRECOND: D 256 or 512; PAIRS <= D / 2 and a multiple of 8; qkv and q 16-byte aligned;
//          page_table is filled for every row's position. It, sequences and positions are
//          written before the step's first launch, which does not overlap the one before it.
// Constants: D, Q_HEADS, KV, HAS_V, PAIRS, S, FP8.

#include "head_norms.cuh"

#define WARPS 4
#define HEADS (Q_HEADS + 2 * KV)

__device__ __forceinline__ void store_bf16(u16* to, const Head& head, int lane) {
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const float* x = head.x[p];
        store_vector(to + p * 256 + lane * 8,
                     make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]),
                                pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7])));
    }
}

__device__ __forceinline__ void store_page(u8* pages, u64 slot, int kv, const Head& head,
                                           float factor, int lane) {
    if (!FP8) {
        store_bf16((u16*)pages + (slot * KV + kv) * D, head, lane);
        return;
    }
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const float* x = head.x[p];
        u32 words[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            words[i] = pack_e4m3(x[4 * i] * factor, x[4 * i + 1] * factor)
                       | pack_e4m3(x[4 * i + 2] * factor, x[4 * i + 3] * factor) << 16;
        }
        store_vector(pages + (slot * KV + kv) * D + p * 256 + lane * 8,
                     make_uint2(words[0], words[1]));
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP)
kv_append(u16* __restrict__ q, u8* __restrict__ k_pages, u8* __restrict__ v_pages,
          const u16* qkv, const float* __restrict__ q_norm, const float* __restrict__ k_norm,
          const u64* __restrict__ turns, const int* __restrict__ sequences,
          const int* __restrict__ positions, const int* __restrict__ page_table,
          const float* __restrict__ k_inverse, const float* __restrict__ v_inverse, int num_rows,
          int max_pages, float eps) {
    const int lane = threadIdx.x % WARP, index = blockIdx.x * WARPS + threadIdx.x / WARP;
    const int row = index / HEADS, head = index % HEADS;
    allow_next_kernel();
    const bool is_q = head < Q_HEADS, is_v = head >= Q_HEADS + KV;
    int sequence = -1;
    u64 slot = 0;
    Constants c;
    if (row < num_rows) {
        sequence = sequences[row];
        const int position = positions[row];
        if (!is_q && sequence >= 0) {
            const int page = page_table[(u64)sequence * max_pages + position / S];
            slot = (u64)page * S + position % S;
        }
        if (is_v) {
#pragma unroll
            for (int p = 0; p < PARTS; ++p) {
#pragma unroll
                for (int i = 0; i < 8; ++i) c.weight[p][i] = 1.0f;
            }
        } else {
            load_weight(c, is_q ? q_norm : k_norm, lane);
            compute_turns(c, turns, position, lane);
        }
    }
    float factor = 1.0f;                 // read here: behind the wait it would be a read more
    if (FP8 && !is_q && row < num_rows)
        factor = __uint_as_float(load_activation_word(
            is_v ? v_inverse + head - Q_HEADS - KV : k_inverse + head - Q_HEADS));
    wait_for_previous_kernel();
    if (row >= num_rows || (!is_q && sequence < 0)) return;
    Head x = {};
    if (sequence >= 0) {
        // V heads are the last ones of qkv; without a projection of their own, the K heads again
        const int source = is_v && !HAS_V ? head - KV : head;
        x = load_head(qkv + ((u64)row * (HAS_V ? HEADS : HEADS - KV) + source) * D, lane);
        normalise(x, c, eps);
        if (!is_v) rotate(x, c, lane);
    }
    if (is_q) {
        store_bf16(q + ((u64)row * Q_HEADS + head) * D, x, lane);
    } else if (is_v) {
        const int kv = head - Q_HEADS - KV;
        store_page(v_pages, slot, kv, x, factor, lane);
    } else {
        const int kv = head - Q_HEADS;
        store_page(k_pages, slot, kv, x, factor, lane);
    }
}
