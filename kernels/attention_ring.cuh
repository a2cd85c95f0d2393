// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// attention_append with e4m3 pages and a head dim of 512, for long contexts: what attend() does for
// one row, with the same bits, but K and V come through a ring of three places in shared memory, each
// a tile's K or V, so that the next two of them are always under way, whatever the block does. Each
// warp copies and reads its own part of a place; nothing passes from warp to warp but the scores.
// One row sees all keys of all tiles but its last, and a block keeps its kv head: neither masks nor
// queries are looked at again from tile to tile.
//
// Included after attention_append.cuh. RING: places, 0 (none of this) or 3. A sum by the last block
// (`fused`) is not made here.

#if RING

#define PLACE (TILE * D / WARPS)         // bytes of a place that a warp has

// What a block's chunks follow from.
struct Order {
    int lowest, steps[2];                // its last one; from one to the next, by turns
};

// This block's first item, if any. The blocks of a kv head take its chunks in turn, the last first,
// every second round backwards, since chunks get shorter. But where a block's share of the tiles is
// less than the longest chunk, a block takes the chunks that end in its share: they lie side by side
// and their sizes are powers of two, so that no block has more than the longest. The last chunk is a
// first item either way.
__device__ __forceinline__ bool find_first(Item& item, Order& order, const int4* spans) {
    const int4 span = spans[0];
    const int high = chunk_of(span.z), end = chunk_start(high + 1), tiles = end / TILE;
    const int blocks = gridDim.x / KV, block = blockIdx.x / KV;     // of a kv head
    int chunk = high - block;
    order = {0, {2 * (blocks - block) - 1, 2 * block + 1}};
    if (high >= blocks && end - chunk_start(high) > tiles / blocks * TILE) {
        chunk = chunk_of((tiles - tiles * block / blocks) * TILE) - 1;
        order = {chunk_of((tiles - tiles * (block + 1) / blocks) * TILE), {1, 1}};
    }
    item = {0, span.x, 1, span.z, chunk, 0, high + 1, (int)blockIdx.x % KV, 0};
    item.first_key = chunk_start(chunk);
    item.stop = min(chunk_start(chunk + 1), span.z + 1);
    return span.y > 0 && block < blocks && chunk >= order.lowest;
}

// A block's tiles, one after the other.
struct Cursor {
    int chunk, key, stop, round;         // key: the tile's first, stop: that of the chunk
};

// The next tile; the chunk is below the block's last one where there is none.
__device__ __forceinline__ void go_on(Cursor& at, const Order& order) {
    at.key += TILE;
    if (at.key < at.stop) return;
    at.chunk -= at.round++ % 2 == 0 ? order.steps[0] : order.steps[1];
    at.key = chunk_start(at.chunk);
    at.stop = chunk_start(at.chunk + 1);
}

// A tile that is read next.
struct Ahead {
    Pages pages;
    int key, limit;                      // limit: keys from there on are zeros
};

__device__ __forceinline__ Ahead look_ahead(const Cursor& at, const Order& order, const int* table,
                                            int position, int warp) {
    Ahead tile;
    tile.key = at.key;
    tile.limit = at.chunk < order.lowest ? -(1 << 30) : position + 1;
    tile.pages = find_pages(table, at.key, 0, tile.limit, warp);
    return tile;
}

// K of the warp's 16 keys in its half of D, with FIRST but for the row's own; only this lane reads
// what it copies.
template <bool FIRST>
__device__ __forceinline__ void copy_k(u8* place, const u8* pages, const Ahead& tile, int warp,
                                       int lane) {
    const int first = tile.key + warp % KEY_GROUPS * 16;
    const u8* row = pages + (u64)tile.pages.of_k * (S * KEY_STRIDE)
                    + (u32)(first % S) * KEY_STRIDE;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int key = first + lane / 4 + i * 8;
        if (FIRST && key == tile.limit - 1) continue;
#pragma unroll
        for (int j = 0; j < K_LOADS; ++j)
            copy_async(place + (j * 2 + i) * (WARP * 16) + lane * 16,
                       row + i * 8 * KEY_STRIDE + j * 64, key < tile.limit);
    }
}

// Where 8 columns of V's key 16 s + 4 t + i lie for i = s = 0 (i: 256 bytes further, s: 1,024), so
// that readers (4 keys t, 8 columns) and writers (8 rows of 64 bytes) meet no bank twice.
__device__ __forceinline__ int v_place(int t, int columns) {
    return t * 64 + (columns / 2 ^ (t & 2)) * 16 + columns % 2 * 8;
}

// V of the tile in the warp's columns, with FIRST but for the row's own; the warp's lanes read it.
template <bool FIRST>
__device__ __forceinline__ void copy_v(u8* place, const u8* pages, const Ahead& tile, int lane) {
    const int own = lane / 4 % 4 * 4 + lane / 16;
    const u8* row = pages;
#pragma unroll
    for (int i = 0; i < TILE / 8; ++i) {
        const int key = tile.key + i / 2 * 16 + i % 2 * 2;
        if (i == 0 || (i % 2 == 0 && PAGES_OF_TILE > 1)) {
            row = pages + (u64)tile.pages.of_v[i / 2 % PAGES_OF_TILE] * (S * KEY_STRIDE)
                  + (u32)((tile.key + i / 2 * 16) % S) * KEY_STRIDE
                  - (i / 2 * 16) * KEY_STRIDE;
        }
        if (FIRST && key + own == tile.limit - 1) continue;
        copy_async(place + i * 512 + lane / 16 * 256 + v_place(lane / 4 % 4, lane % 4 * 2),
                   row + (i / 2 * 16 + i % 2 * 2) * KEY_STRIDE, key + own < tile.limit);
    }
}

// out += V^T P^T, as multiply_pv does.
__device__ __forceinline__ void multiply_ring(float (*out)[NT][4], const uint2 (&own)[TILE / 16],
                                              const uint2* p_tile, const u8* place, int lane) {
    const u8* from = place + v_place(lane % 4, lane / 4);
#pragma unroll
    for (int s = 0; s < TILE / 16; ++s) {
        u32 v[4][V_WORDS];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const uint2 both = *(const uint2*)(from + s * 1024 + i * 256);
            v[i][0] = both.x;
            v[i][1] = both.y;
        }
        uint2 p[NT];
#pragma unroll
        for (int n = 0; n < NT; ++n)
            p[n] = NT == 1 ? own[s] : p_tile[(n * (TILE / 16) + s) * WARP + lane];
#pragma unroll
        for (int m = 0; m < MTILES; ++m) {
            u32 a[4];
            v_operand(a, v, m, 0);
#pragma unroll
            for (int n = 0; n < NT; ++n) multiply(out[m][n], a, p[n].x, p[n].y);
        }
    }
}

__device__ __forceinline__ void attend_row(
        float* partial, float2* partial_ml, u8* k_pages, u8* v_pages,
        const float* __restrict__ k_scale, const int4* __restrict__ spans,
        const int* __restrict__ page_table, int num_rows, int max_chunks, const Raw& raw,
        u8* shared) {
    uint4* q_tile = (uint4*)shared;                          // (NT, KSTEPS / 2, 32)
    float* all_scores = (float*)(q_tile + NT * KSTEPS / 2 * 32);     // halves of (QUERIES, TILE)
    u8* ring = (u8*)(all_scores + (NT == 1 ? 4 : 2) * QUERIES * TILE);
    uint2* p_tile = (uint2*)(ring + RING * WARPS * PLACE);   // (NT, TILE / 16, 32), NT > 1
    float* shrinks = (float*)(p_tile + (NT > 1 ? NT * (TILE / 16) * 32 : 0));    // (QUERIES)
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    allow_next_kernel();
    Item item;
    Order order;
    if (!find_first(item, order, spans)) {
        wait_for_previous_kernel();
        return;
    }
    // of the warp: K of this tile, its V, K of the next one
    u8 *here = ring + warp * PLACE, *behind = here + WARPS * PLACE, *then = behind + WARPS * PLACE;
    const u8* k_from = k_pages + item.kv * D + lane / 4 * KEY_STRIDE + warp / KEY_GROUPS * (D / 2)
                       + lane % 4 * 16;
    const u8* v_from = v_pages + item.kv * D + (lane / 4 % 4 * 4 + lane / 16) * KEY_STRIDE
                       + warp * (D / WARPS) + lane % 4 * 16;
    const int position = item.start, kv = item.kv;
    const bool owns = item.chunk == item.num_chunks - 1;
    Cursor at = {item.chunk, item.first_key, item.stop, 0}, far = at;
    const Ahead first = look_ahead(far, order, page_table, position, warp);
    // the row's own key is not there yet, in whichever tile it lies
    copy_k<true>(here, k_from, first, warp, lane);
    commit_copies();
    copy_v<true>(behind, v_from, first, lane);
    commit_copies();
    go_on(far, order);
    Ahead next = look_ahead(far, order, page_table, position, warp);
    if (!owns) copy_k<false>(then, k_from, next, warp, lane);
    const float to_base_2 = __fmul_rn(load_scale(k_scale + kv), LOG2_E);
    u8* own_rows = (u8*)(NT == 1 ? all_scores + 2 * QUERIES * TILE : (float*)p_tile);
    const u64 slot = owns ? (u64)page_table[position / S] * S + position % S : 0;
    {
        Constants constants[JOBS_PER_WARP];
        float2* turned = (float2*)all_scores;                // until there are scores
        float factors[JOBS_PER_WARP];
        load_norms(constants, factors, raw, kv, warp, lane);
        stage_turns(turned, raw.turns, position);
        __syncthreads();
        wait_for_previous_kernel();
        stage_heads(q_tile, own_rows, k_pages, v_pages, raw, turned, constants, factors, item,
                    owns, slot, warp, lane);
        __syncthreads();
    }
    if (owns) {
        const int key = position - first.key;
        if (key < TILE) {                // in the place of what the pages would have given
            if (key / 16 == warp % KEY_GROUPS && key % 8 == lane / 4) {
                const u8* from = own_rows + warp / KEY_GROUPS * (D / 2) + lane % 4 * 16;
#pragma unroll
                for (int j = 0; j < K_LOADS; ++j)
                    *(uint4*)(here + (j * 2 + key / 8 % 2) * (WARP * 16) + lane * 16) =
                        *(const uint4*)(from + j * 64);
            }
            if (lane < 4)
                *(uint4*)(behind + key / 16 * 1024 + key % 4 * 256
                          + v_place(key / 4 % 4, lane * 2)) =
                    *(const uint4*)(own_rows + D + warp * (D / WARPS) + lane * 16);
        }
        copy_k<false>(then, k_from, next, warp, lane);
    }
    commit_copies();

    Sums sums;
    float acc[MTILES][NT][4];
    start_sums(sums, acc);
    float* scores = all_scores;
    go_on(far, order);
    Ahead second = look_ahead(far, order, page_table, position, warp);
    while (true) {
        wait_for_copies<2>();
        multiply_qk(scores, q_tile, (const uint4*)here + lane, WARP, warp, lane);
        __syncwarp();
        copy_v<false>(here, v_from, next, lane);
        commit_copies();
        __syncthreads();
        uint2 p[TILE / 16];
        float shrink[NT][2];             // of queries 2 t and 2 t + 1
        if (NT == 1 || warp < NT) {
            const int query = (NT == 1 ? 0 : warp * 8) + lane / 4;
            const int seen = position - at.key + 1;
            // a query past the last has any number, which goes nowhere
            const float own_shrink = seen >= TILE
                ? probabilities(p, sums, scores, query, 0, TILE, to_base_2, lane)
                : probabilities(p, sums, scores, query, 0, seen - lane % 4 * 4, to_base_2, lane);
            if (NT == 1) {
                shrink[0][0] = __shfl_sync(FULL_MASK, own_shrink, lane % 4 * 8);
                shrink[0][1] = __shfl_sync(FULL_MASK, own_shrink, lane % 4 * 8 + 4);
            } else {
#pragma unroll
                for (int s = 0; s < TILE / 16; ++s)
                    p_tile[(warp * (TILE / 16) + s) * WARP + lane] = p[s];
                if (lane % 4 == 0) shrinks[query] = own_shrink;
            }
        }
        if (NT == 1) {
            scores = scores == all_scores ? all_scores + 2 * QUERIES * TILE : all_scores;
        } else {
            __syncthreads();
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const float2 both = *(const float2*)(shrinks + n * 8 + lane % 4 * 2);
                shrink[n][0] = both.x;
                shrink[n][1] = both.y;
            }
        }
#pragma unroll
        for (int m = 0; m < MTILES; ++m) {
#pragma unroll
            for (int n = 0; n < NT; ++n) {
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[m][n][i] *= shrink[n][i % 2];
            }
        }
        wait_for_copies<2>();
        __syncwarp();
        multiply_ring(acc, p, p_tile, behind, lane);
        __syncwarp();
        copy_k<false>(behind, k_from, second, warp, lane);
        commit_copies();
        next = second;
        go_on(far, order);
        second = look_ahead(far, order, page_table, position, warp);
        if (at.key + TILE >= at.stop) {
            item.chunk = at.chunk;
            store_partial(partial, partial_ml, item, sums, acc, num_rows, max_chunks, warp, lane);
            start_sums(sums, acc);
        }
        go_on(at, order);
        if (at.chunk < order.lowest) break;
        u8* free = here;
        here = then;
        then = behind;
        behind = free;
    }
    wait_for_copies<0>();                // none outlives its block
}

#endif
