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
draft_context(u16* k_pages, u16* v_pages, const u16* kv, const float* k_norms, const u64* turns,
              const int* sequences, const int* positions, const int* page_table, int num_rows,
              int num_layers, int num_pages, int row_size, int column, int max_pages, float eps) {
    const int lane = threadIdx.x % WARP;
    const u32 index = blockIdx.x * WARPS + threadIdx.x / WARP;
    const int head = index % (2 * KV), layer = index / (2 * KV) % num_layers;
    const int place = index / (2 * KV) / num_layers, row = min(place, num_rows - 1);
    allow_next_kernel();
    const int sequence = sequences[row], position = max(positions[row], 0);
    const int page = page_table[(u64)max(sequence, 0) * max_pages + position / S];
    const DraftTurn turn = prepare_turn(k_norms + layer * D, turns, position, lane);
    wait_for_previous_kernel();
    if (place >= num_rows || sequence < 0) return;
    const u64 slot = ((u64)layer * num_pages + page) * S + position % S;
    DraftHead x = load_draft_head(
        kv + (u64)row * row_size + column + (u64)(layer * 2 * KV + head) * D, lane);
    if (head < KV) norm_and_turn(x, turn, eps, 1.0f);
    store_draft_head((head < KV ? k_pages : v_pages) + (slot * KV + head % KV) * D, x, lane);
}
