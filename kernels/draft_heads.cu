// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// draft_heads: q = rope(rms(q; q_norm)) * q_scale and k = rope(rms(k; k_norm)) of a draft's rows,
// in place. An assistant's rows have no k (K_HEADS 0).
//
// heads   (T, ROW_HEADS D) bf16: q heads, then k heads; what comes behind them stays (v)
// q_norm, k_norm (D) f32; turns (PAIRS) u64 as in kv_append.cu
// starts  (B) i32: row t stands at starts[t / rows] + t % rows + offset
//
// Bytes moved: 4 T (Q + K) D. Bound by latency. One warp per (row, head), 4 in a block.
//
// PRECOND: D a multiple of 8 up to 512; starts is written before the draft's first launch.
// Constants: D, Q_HEADS, K_HEADS, ROW_HEADS, PAIRS.

#include "draft_head.cuh"

#define WARPS 4
#define HEADS (Q_HEADS + K_HEADS)

extern "C" __global__ void __launch_bounds__(WARPS * WARP)
draft_heads(u16* heads, const float* q_norm, const float* k_norm, const u64* turns,
            const int* starts, int num_rows, int rows, int offset, float eps, float q_scale) {
    const int lane = threadIdx.x % WARP, index = blockIdx.x * WARPS + threadIdx.x / WARP;
    const int row = min(index / HEADS, num_rows - 1), head = index % HEADS;
    const bool is_q = head < Q_HEADS;
    allow_next_kernel();
    const DraftTurn turn = prepare_turn(is_q ? q_norm : k_norm, turns,
                                        starts[row / rows] + row % rows + offset, lane);
    wait_for_previous_kernel();
    if (index / HEADS >= num_rows) return;
    u16* at = heads + ((u64)row * ROW_HEADS + head) * D;
    DraftHead x = load_draft_head(at, lane);
    norm_and_turn(x, turn, eps, is_q ? q_scale : 1.0f);
    store_draft_head(at, x, lane);
}
