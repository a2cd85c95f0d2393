// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// draft_context: what a DFlash drafter keeps of a target's rows, for all its layers of one type at
// once: k = rope(rms(k; k_norm)) and v into the slots of the target's own K and V.
//
// k_pages, v_pages (L, P, S, KV, D) bf16
// kv         (T, N) bf16: of each layer KV heads of k, then KV of v; this type's from `column` on
// k_norms    (L, D) f32; turns (PAIRS) u64 as in kv_append.cu
// sequences  (T) i32: row of page_table, -1 for padding; positions (T) i32
// page_table (B, max_pages) i32
//
// Bytes moved: 8 T L KV D. Bound by latency for few rows. One warp per (row, layer, head), 4 in a
// block.
//
// PRECOND: D a multiple of 8 up to 512; page_table is filled for every row's position; it,
//          sequences and positions are written before the step's first launch.
// Constants: D, PAIRS, KV, S.

#include "draft_head.cuh"

#define WARPS 4

extern "C" __global__ void __launch_bounds__(WARPS * WARP)
draft_context(u16* __restrict__ k_pages, u16* __restrict__ v_pages, const u16* kv,
              const float* __restrict__ k_norms, const u64* __restrict__ turns,
              const int* __restrict__ sequences, const int* __restrict__ positions,
              const int* __restrict__ page_table, int num_rows, int num_layers, int num_pages,
              int row_size, int column, int max_pages, float eps) {
    const int lane = threadIdx.x % WARP;
    const u32 index = blockIdx.x * WARPS + threadIdx.x / WARP;
    const int head = index % (2 * KV), layer = index / (2 * KV) % num_layers;
    const int row = index / (2 * KV) / num_layers;
    allow_next_kernel();
    wait_for_previous_kernel();
    if (row >= num_rows) return;
    const int sequence = sequences[row];
    if (sequence < 0) return;
    const int position = positions[row];
    const int page = page_table[(u64)sequence * max_pages + position / S];
    const u64 slot = ((u64)layer * num_pages + page) * S + position % S;
    DraftHead x = load_draft_head(
        kv + (u64)row * row_size + column + (u64)(layer * 2 * KV + head) * D, lane);
    if (head < KV) norm_and_turn(x, k_norms + layer * D, turns, position, eps, 1.0f, lane);
    store_draft_head((head < KV ? k_pages : v_pages) + (slot * KV + head % KV) * D, x, lane);
}
