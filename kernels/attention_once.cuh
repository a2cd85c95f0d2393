// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// attention_decode of one sequence in a window by as many blocks as there are items, which end with
// their only tile: nothing is looked up or requested for a next one, so that what stands before the
// wait for the previous kernel is short enough to end before it, and what stands behind it runs once
// without a branch. The sums and their order are those of attend().
//
// Included after store_partial. The grid is (groups, KV, chunks), the last chunks first. Constants:
// as of attention_decode.cu; WINDOW is not 0, CHUNK is TILE.

__device__ __forceinline__ void attend_once(
        float* partial, float2* partial_ml, const u16* q, const u8* k_pages, const u8* v_pages,
        const float* k_scale, const int4* spans, const int* __restrict__ page_table, int num_rows,
        int max_chunks, u8* shared) {
    uint4* q_tile = (uint4*)shared;                          // (NT, KSTEPS / 2, 32)
    float* scores = (float*)(q_tile + NT * KSTEPS / 2 * 32);         // halves of (QUERIES, TILE)
    uint4* k_tile = (uint4*)(scores + 2 * QUERIES * TILE);
    uint2* p_tile = (uint2*)(k_tile + 2 * K_LOADS * WARPS * 32);     // (NT, TILE / 16, 32), NT > 1
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv = blockIdx.y;
    allow_next_kernel();
    const uint4 words = load_activations(spans);
    const float to_base_2 = FP8 ? __fmul_rn(load_scale(k_scale + kv), LOG2_E) : LOG2_E;
    const int rows = (int)words.y, start = (int)words.z, end_key = start + rows;
    const int low_key = first_visible(start), low = chunk_of(low_key), high = chunk_of(end_key - 1);
    const Item item = {0, (int)words.x, rows, start, high - (int)blockIdx.z, low, high - low + 1, kv,
                       (int)blockIdx.x};
    if (rows <= 0 || item.chunk < low || item.group * QUERIES >= rows * GROUP) {
        wait_for_previous_kernel();
        return;
    }
    const int tile_key = chunk_start(item.chunk), own_key = warp % KEY_GROUPS * 16 + lane / 4;
    const Pages places = find_pages(page_table, tile_key, low_key, end_key, warp);
    u32 v[TILE / 16][4][V_WORDS];
    // keys before the first row's are in the pages
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int key = tile_key + own_key + i * 8;
        if (key < start || key >= end_key)
            request_k(k_tile, k_pages, places.of_k, kv, key, i, key >= low_key && key < start, warp,
                      lane);
    }
    load_v(v, v_pages, places, kv, tile_key, low_key, start, true, warp, lane);
    wait_for_previous_kernel();
    if (tile_key + TILE > start) {       // the rows' own, which the launch before writes
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int key = tile_key + own_key + i * 8;
            if (key >= start && key < end_key)
                request_k(k_tile, k_pages, places.of_k, kv, key, i, true, warp, lane);
        }
        load_v(v, v_pages, places, kv, tile_key, start, end_key, false, warp, lane);
    }
    commit_copies();
    stage_q(q_tile, q, item);
    __syncthreads();
    wait_for_copies<0>();                // a lane reads what it copied
    multiply_qk(scores, q_tile, k_tile, warp, lane);
    __syncthreads();
    Sums sums;
    float acc[MTILES][NT][4];
    start_sums(sums, acc);
    uint2 p[TILE / 16];
    if (NT == 1 || warp < NT) {
        const int query = (NT == 1 ? 0 : warp * 8) + lane / 4;
        const int position = start + (item.group * QUERIES + query) / GROUP;
        const int before = tile_key + lane % 4 * 4;          // this lane's keys count from here
        probabilities(p, sums, scores, query, first_visible(position) - before,
                      position < end_key ? position - before + 1 : -TILE, to_base_2, lane);
        if (NT > 1) {
#pragma unroll
            for (int s = 0; s < TILE / 16; ++s)
                p_tile[(warp * (TILE / 16) + s) * WARP + lane] = p[s];
        }
    }
    if (NT > 1) __syncthreads();
    multiply_pv(acc, p, p_tile, v, 0, lane);
    store_partial(partial, partial_ml, item, sums, acc, num_rows, max_chunks, warp, lane);
}
