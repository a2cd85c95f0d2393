// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// out = softmax(q K^T) V over the pages of each sequence, for generated rows (decode and verify).
//
//   q, out (T, Q, D) bf16
//   k_pages, v_pages (P, S, KV, D) bf16, or e4m3 that k_scale and v_scale (KV) multiply
//   spans (B) = {first row, rows (0: none), position of the first row, unused}; 1 to 16 rows each
//   page_table (B, max_pages); entries below the window and past the last row are never read
//   partial (max_chunks, T, Q, D) float32, partial_ml (T, Q, max_chunks) {maximum, sum}: scratch
//   tickets (B, KV, MAX_GROUPS) u32, with CLAIMS (KV) more: scratch, zero before and after a launch
//
// The scale is 1 (it sits in the norms). Row i sees the keys 0 .. its position, with a window the
// last WINDOW of them.
//
// Bytes: K and V of the visible keys once per query group, 2 KV D bytes each per key; q and out;
// partial results 2 * 4 D bytes per query and chunk (they stay in the L2 cache). Bound by memory
// from some thousand keys on, below that by the latency of one chunk: fetch, two products, one
// exchange of maxima, one of probabilities.
//
// Mapping. Keys are cut into chunks at absolute positions (attention_chunks.cuh). One block of 8
// warps takes one (sequence, chunk, kv head, group of 8 NT queries) at a time; queries are rows
// times the GROUP heads that share the kv head. Tiles of 64 keys; K and V are the A operands, 16
// keys or 16 columns, and 8 queries the B operands, of which one row seldom has more:
//   scores: warps w and w + 4 have keys 16w .. 16w + 15, half of D each; each lane copies what it
//     needs of K into shared memory and reads it there, with D permuted in the same way for Q,
//     which lies in shared memory in the order of the B operand; both halves go to shared memory
//   probabilities: with one query tile every warp computes all, in the order of the B operand, and
//     nothing but the scores passes a barrier; with more, warp n those of tile n for all
//   output: warp w has all 64 keys and columns w D / 8 ..; V goes straight into registers, and two
//     keys of two columns are put side by side by a byte permutation
// K of the next tile is requested behind the scores, V behind the output, also of the next item's
// first tile; their pages are looked up before. All loads of a loop share one of the assembler's
// counters, and whoever waits for one of them waits for all: so copies fetch K, and nothing else
// that is waited for is loaded, and no loop or branch begins, between V's request and its use.
// e4m3 numbers become f16 exactly, and q and the probabilities (times 2^15) are f16 then, else all
// are bf16. The partial results of a query's chunks are added in ascending order: by the block
// that finishes last where `fused` is set, else by attention_decode_combine. Which of them, NT and
// the number of blocks change no bit; nor do other rows: a hidden key has probability 0, a hidden
// chunk has weight 0, both add exact zeros.
// attention_append (APPEND 1) does the work of kv_append.cu too, for one row of one sequence: see
// attention_append.cuh. Its bits are those of the two launches.
// Multiplications and additions that follow one another are intrinsics: the compiler may fuse them
// in one variant and not in another.
// CLAIMS: one row of FP8 pages in a full layer. Blocks claim chunks one after the other, see
// attention_tiles.cuh; with 16 bit pages and elsewhere they take them in rounds.
//
// PRECOND: D is 256 or 512; S is a multiple of 16; GROUP is at most 16
// PRECOND: spans, page_table and the keys before each span's first row are written before the
//          step's first launch, which does not overlap the one before it: they are read before
//          the wait for the previous kernel
// PRECOND: max_chunks covers every span
// PRECOND (FP8): |q| < 65,504
// PRECOND (APPEND): T and B are 1; gridDim.x >= KV, so that a row's own key is a block's first item
// With ONCE each item is a block's only one: see attention_once.cuh.
// Constants: D, GROUP, KV, S, WINDOW (0: none), FP8 (0, 1), CHUNK, NT (1, 2, 4), MIN_BLOCKS
// resident on a multiprocessor, CLUSTER (blocks of one, 1: none); with APPEND also HAS_V and
// PAIRS; for attention_decode_combine COLUMNS_EACH (1, 2, 4)

#ifndef APPEND
#define APPEND 0
#endif

#ifndef ONCE
#define ONCE 0
#endif

#ifndef CLUSTER
#define CLUSTER 1
#endif
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ < 900       // which has no clusters
#undef CLUSTER
#define CLUSTER 1
#endif

#define CLAIMS (APPEND && FP8 && CLUSTER == 1 && WINDOW == 0)    // see attention_tiles.cuh

#include "cluster.cuh"
#include "attention_chunks.cuh"
#include "attention_combine.cuh"
#include "attention_tiles.cuh"
#include "tickets.cuh"

// What attention_append has in the place of q: see kv_append.cu.
struct Raw {
    const u16* qkv;
    const float *q_norm, *k_norm;
    const u64* turns;
    const float *k_inverse, *v_inverse;
    float eps;
};

#include "attention_cluster.cuh"
#if APPEND
#include "head_norms.cuh"
#include "attention_append.cuh"

#endif

#define FEW_CHUNKS 8                     // of the only row, in the launch of its own
#define FUSED_COLUMNS 2                  // of a lane, in the sum of the chunks by the last block
// Partial results in flight: those of a window of 1,024 where more would not spill.
#define FUSED_AHEAD (D == 512 || !FP8 ? 2 : NT > 1 ? 8 : 12)
#ifndef COLUMNS_EACH
#define COLUMNS_EACH 1                   // of a lane, in the launch of its own
#endif
#define COMBINE_AHEAD (COLUMNS_EACH == 1 ? 32 : COLUMNS_EACH == 2 ? 16 : 12)
#define SEEN_CHUNKS ((WINDOW + CHUNK - 2) / CHUNK + 1)       // of one row, at most, in a window
#define MORE_CHUNKS (WINDOW == 0 || WINDOW + 16 > (GROUP_CHUNKS - 1) * CHUNK)    // than a group
#define LOG2_E 1.4426950408889634f

// Before the wait for the previous kernel, and not moved behind it.
__device__ __forceinline__ float load_scale(const float* from) {
    return __uint_as_float(load_activation_word(from));
}

#if ONCE
#include "attention_once.cuh"
#else

__device__ __forceinline__ void attend(
        u16* __restrict__ out, float* partial, float2* partial_ml, u32* tickets,
        const u16* q, u8* k_pages, u8* v_pages,
        const float* __restrict__ k_scale, const float* __restrict__ v_scale,
        const int4* __restrict__ spans, const int* __restrict__ page_table, int fused,
        int num_spans, int num_rows, int max_pages, int max_chunks, const Raw& raw, u8* shared) {
#if CLUSTER > 1
    const Received sent = received(shared);
    shared = (u8*)(sent.mls + CLUSTER * QUERIES);
#endif
    uint4* q_tile = (uint4*)shared;                          // (NT, KSTEPS / 2, 32)
    float* all_scores = (float*)(q_tile + NT * KSTEPS / 2 * 32);     // halves of (QUERIES, TILE)
    uint4* k_tile = (uint4*)(all_scores + (NT == 1 ? 4 : 2) * QUERIES * TILE);
    uint2* p_tile = (uint2*)(k_tile + 2 * K_LOADS * WARPS * 32);     // (NT, TILE / 16, 32), NT > 1
    float* shrinks = (float*)(p_tile + (NT > 1 ? NT * (TILE / 16) * 32 : 0));    // (QUERIES)
    // not in registers: the item whose tiles these are, the next one, and the one after that
    Item *own = (Item*)(shrinks + QUERIES), *ahead = own + 1, *later = own + 2;
    u32 *ticket = (u32*)(own + 3), *zero = ticket + 1;
    Order* kept = (Order*)(zero + 1);
    float* key_scales = (float*)(kept + 1);                  // (KV), for scores in base 2
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#if WINDOW > 0 || APPEND
    allow_next_kernel();
#endif
    enter_cluster();                     // its blocks may be written to when all are there
    Item item;
    Order order;
    int round = 0;
    if (!find_first(item, order, spans, num_spans)) {
        wait_for_previous_kernel();
#if CLUSTER > 1
        wait_for_cluster();
        const Place all = place_of_cluster(spans, num_spans);
        if (all.num_chunks == 0 || all.num_chunks > CLUSTER || all.number > 0) return;
        arrive_at_cluster();
        add_received(out, sent, v_scale, spans, num_spans, warp, lane);
#endif
        return;
    }
    const int low_key = first_visible(item.start), end_key = item.start + item.num_rows;
    int tile_key = item.first_key;
    u32 v[TILE / 16][4][V_WORDS];
    // of a tile, in the scores; the lane's other key is 8 above
    const int own_key = warp % KEY_GROUPS * 16 + lane / 4;
    Pages places = find_pages(page_table + (u64)item.sequence * max_pages, tile_key, low_key,
                              end_key, warp);
    // keys before the first row's are in the pages
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int key = tile_key + own_key + i * 8;
        if (key < item.start || key >= end_key)
            request_k(k_tile, k_pages, places.of_k, item.kv, key, i,
                      key >= low_key && key < item.start, warp, lane);
    }
    load_v(v, v_pages, places, item.kv, tile_key, low_key, item.start, true, warp, lane);
    Item next = item;
#if CLAIMS
    bool more = false;
#else
    bool more = find_next(next, order, ++round, spans, num_spans);
#endif
    if (threadIdx.x == 0) {
        *own = item;
        *ahead = next;
        if (CLAIMS) *kept = order;
        *zero = 0;
    }
    if (threadIdx.x < KV)
        key_scales[threadIdx.x] = FP8 ? __fmul_rn(load_scale(k_scale + threadIdx.x), LOG2_E)
                                      : LOG2_E;
#if APPEND
    const bool owns = item.chunk - item.low_chunk == item.num_chunks - 1;
    // where the scores of the first tile do not go
    u8* own_rows = (u8*)(NT == 1 ? all_scores + 2 * QUERIES * TILE : (float*)p_tile);
    const u64 slot = owns ? (u64)page_table[(u64)item.sequence * max_pages + item.start / S] * S
                                + item.start % S : 0;
    Constants constants[JOBS_PER_WARP];
    float2* table = (float2*)all_scores;             // until there are scores
    float factors[JOBS_PER_WARP];
    load_norms(constants, factors, raw, item.kv, warp, lane);
    stage_turns(table, raw.turns, item.start);
    commit_copies();
    __syncthreads();
    wait_for_previous_kernel();
#if CLAIMS
    const bool single = item.stop - item.first_key <= TILE;
    if (single && threadIdx.x == 0) *ticket = claim_next(*ahead, order, tickets);
#endif
    stage_heads(q_tile, own_rows, k_pages, v_pages, raw, table, constants, factors, item, owns,
                slot, warp, lane);
    __syncthreads();
#if CLAIMS
    if (single) more = *ticket;
#endif
    if (owns) take_own(k_tile, v, own_rows, own_key, item.start - tile_key, warp, lane);
#else
#if WINDOW == 0                          // what the next launch requests stands behind these pages:
    allow_next_kernel();                 // 12 layers of the 12B are 3 us shorter, 8 in affine codes
#endif
    wait_for_previous_kernel();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int key = tile_key + own_key + i * 8;
        if (key >= item.start && key < end_key)
            request_k(k_tile, k_pages, places.of_k, item.kv, key, i, true, warp, lane);
    }
    commit_copies();
    load_v(v, v_pages, places, item.kv, tile_key, item.start, end_key, false, warp, lane);
    stage_q(q_tile, q, item);
    __syncthreads();
#endif

    Sums sums;
    float acc[MTILES][NT][4];
    start_sums(sums, acc);
    float* scores = all_scores;
    while (true) {
        // what comes next, the item's next tile or the next item's first
        const bool last = tile_key + TILE >= own->stop, any = !last || more;
        const Item* then = last ? ahead : own;
#if CLAIMS
        // a tile before the last one, which requests the next item's; all chunks behind the first
        // have two tiles at least
        const bool claims = !last && tile_key + 2 * TILE >= own->stop;
        if (claims && threadIdx.x == 0) {
            *ahead = *own;
            *ticket = claim_next(*ahead, *kept, tickets);
        }
#endif
        const int first = then->first_key, next_key = last ? first : tile_key + TILE;
        const int then_low = first_visible(then->start), then_kv = then->kv;
        const int then_end = any ? then->start + then->num_rows : 0;
        places = find_pages(page_table + (u64)then->sequence * max_pages, next_key, then_low,
                            then_end, warp);
        const float to_base_2 = key_scales[own->kv];
        const int start = own->start, end = start + own->num_rows, group = own->group;
        wait_for_copies<0>();
        multiply_qk(scores, q_tile, k_tile, warp, lane);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int key = next_key + own_key + i * 8;
            request_k(k_tile, k_pages, places.of_k, then_kv, key, i,
                      (key >= then_low) & (key < then_end), warp, lane);
        }
        commit_copies();
        __syncthreads();
        uint2 p[TILE / 16];
        float shrink[NT][2];             // of queries 2 t and 2 t + 1
        if (NT == 1 || warp < NT) {
            const int query = (NT == 1 ? 0 : warp * 8) + lane / 4;
            const int position = start + (group * QUERIES + query) / GROUP;
            const int before = tile_key + lane % 4 * 4;      // this lane's keys count from here
            const float own_shrink = probabilities(
                p, sums, scores, query, first_visible(position) - before,
                position < end ? position - before + 1 : -TILE, to_base_2, lane);
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
        multiply_pv(acc, p, p_tile, v, *(volatile u32*)zero, lane);
        tile_key = next_key;
#if CLAIMS
        if (claims) more = *ticket;
#else
        if (last && more) {              // looked up before loads that a loop would wait for
            Item found = *ahead;
            more = find_next(found, *kept, ++round, spans, num_spans);
            if (threadIdx.x == 0) *later = found;
        }
#endif
        load_v(v, v_pages, places, then_kv, tile_key, then_low, then_end, true, warp, lane);
        if (last) {
#if CLUSTER > 1
            wait_for_cluster();
            if (own->num_chunks <= CLUSTER) {
                send(sent, *own, sums, acc, warp, lane);
                arrive_at_cluster();
                wait_for_copies<0>();
                add_received(out, sent, v_scale, spans, num_spans, warp, lane);
                return;
            }
#endif
            store_partial(partial, partial_ml, *own, sums, acc, num_rows, max_chunks, warp, lane);
            __syncthreads();                 // also: all have read q_tile and p_tile
            if (fused) {
                u32* counter = tickets
                               + (own->sequence * KV + own->kv) * MAX_GROUPS + own->group;
                if (threadIdx.x == 0) *ticket = take_ticket(counter);
                __syncthreads();
                if (*ticket == own->num_chunks - 1) {
                    const int first = own->group * QUERIES;
                    const int count = min(QUERIES, own->num_rows * GROUP - first);
                    const float scale = FP8 ? v_scale[own->kv] : 1.0f;
                    const int slices = D / (32 * FUSED_COLUMNS);
                    for (int i = warp; i < count * slices; i += WARPS) {
                        const int query = first + i / slices, row = query / GROUP;
                        combine_row<FUSED_COLUMNS, FUSED_AHEAD, false>(
                            out, partial, partial_ml, num_rows, max_chunks, own->first_row + row,
                            own->kv * GROUP + query % GROUP, own->start + row, own->low_chunk,
                            i % slices, scale, lane);
                    }
                    if (threadIdx.x == 0) *counter = 0;
                }
            }
            if (!any) {
                wait_for_copies<0>();    // none outlives its block
                break;
            }
            const bool same = own->sequence == ahead->sequence && own->kv == ahead->kv
                              && own->group == ahead->group;
#if APPEND
            if (!same) {
                stage_turns(table, raw.turns, ahead->start);
                load_norms(constants, factors, raw, ahead->kv, warp, lane);
                __syncthreads();
                stage_heads(q_tile, own_rows, k_pages, v_pages, raw, table, constants, factors,
                            *ahead, false, 0, warp, lane);
            }
#else
            if (!same) stage_q(q_tile, q, *ahead);
#endif
            __syncthreads();             // all have read the items
            if (threadIdx.x == 0) {
                *own = *ahead;
                if (!CLAIMS) *ahead = *later;
            }
            __syncthreads();
            start_sums(sums, acc);
        }
    }
}

#endif

#if APPEND

// One row of one sequence; writes K and V of it, and no q.
extern "C" __global__ void __launch_bounds__(WARPS * WARP, MIN_BLOCKS) BLOCKS_OF_CLUSTER
attention_append(
        u16* __restrict__ out, float* partial, float2* partial_ml, u32* tickets,
        const u16* qkv, u8* k_pages, u8* v_pages, const float* __restrict__ k_scale,
        const float* __restrict__ v_scale, const int4* __restrict__ spans,
        const int* __restrict__ page_table, int fused, int num_spans, int num_rows, int max_pages,
        int max_chunks, const float* __restrict__ q_norm, const float* __restrict__ k_norm,
        const u64* __restrict__ turns, const float* __restrict__ k_inverse,
        const float* __restrict__ v_inverse, float eps) {
    extern __shared__ __align__(16) u8 shared[];
    const Raw raw = {qkv, q_norm, k_norm, turns, k_inverse, v_inverse, eps};
    attend(out, partial, partial_ml, tickets, 0, k_pages, v_pages, k_scale, v_scale, spans,
           page_table, fused, num_spans, num_rows, max_pages, max_chunks, raw, shared);
}

#else

extern "C" __global__ void __launch_bounds__(WARPS * WARP, MIN_BLOCKS) BLOCKS_OF_CLUSTER
attention_decode(
        u16* __restrict__ out, float* partial, float2* partial_ml, u32* tickets,
        const u16* q, u8* k_pages, u8* v_pages, const float* __restrict__ k_scale,
        const float* __restrict__ v_scale, const int4* __restrict__ spans,
        const int* __restrict__ page_table, int fused, int num_spans, int num_rows, int max_pages,
        int max_chunks) {
    extern __shared__ __align__(16) u8 shared[];
#if ONCE
    attend_once(partial, partial_ml, q, k_pages, v_pages, k_scale, spans, page_table, num_rows,
                max_chunks, shared);
#else
    attend(out, partial, partial_ml, tickets, q, k_pages, v_pages, k_scale, v_scale, spans,
           page_table, fused, num_spans, num_rows, max_pages, max_chunks, Raw{},
           shared);
#endif
}

#endif

// One warp for each 32 COLUMNS_EACH columns of each of the T Q query heads; with `split` all warps
// of a block, for one column each.
// Rows of no span: untouched.
extern "C" __global__ void __launch_bounds__(WARPS * WARP, 2) attention_decode_combine(
        u16* __restrict__ out, const float* partial, const float2* partial_ml,
        const float* __restrict__ v_scale, const int4* __restrict__ spans, int split,
        int num_spans, int num_rows, int max_chunks) {
    __shared__ float2 room[MAX_CHUNKS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int slices = D / (32 * COLUMNS_EACH);
#if COLUMNS_EACH == 1 && WINDOW == 0
    // The only row, if its chunks are few: a warp has all of them, and knows before the wait where
    // they lie; and most blocks are gone at once, for those of the next launch.
    if (split && num_rows == 1 && num_spans == 1) {
        allow_next_kernel();
        const uint4 words = load_activations(spans);
        const int position = words.z, own = blockIdx.x * WARPS + warp;
        if ((int)words.y > 0 && chunk_of(position) < GROUP_CHUNKS) {
            if (own >= Q_HEADS * slices) return;
            const int head = own / slices, slice = own % slices;
            const float scale = FP8 ? load_scale(v_scale + head / GROUP) : 1.0f;
            u16* to = out + (u64)head * D + slice * 32 + lane;
            if (chunk_of(position) < FEW_CHUNKS) {
                OneRequest<1, FEW_CHUNKS> request;
                request.prepare(partial, partial_ml, 1, max_chunks, 0, head, position, 0, slice,
                                lane);
                wait_for_previous_kernel();
                request.add(to, scale, lane);
            } else {
                OneRequest<1, GROUP_CHUNKS> request;
                request.prepare(partial, partial_ml, 1, max_chunks, 0, head, position, 0, slice,
                                lane);
                wait_for_previous_kernel();
                request.add(to, scale, lane);
            }
            return;
        }
    }
#endif
    const int index = split ? blockIdx.x : blockIdx.x * WARPS + warp;
    const int slice = index % slices, head = index / slices % Q_HEADS;
    const int row = index / slices / Q_HEADS;
    allow_next_kernel();
    int4 span = {};                      // the row's own; read before the wait
    if (row < num_rows) {
        for (int b = 0; b < num_spans && row >= span.x + span.y; ++b) {
            const uint4 words = load_activations(spans + b);
            span = {(int)words.x, (int)words.y, (int)words.z, 0};
            if (row < span.x) span.y = span.x = 0;
        }
    }
    const float scale = FP8 ? load_scale(v_scale + head / GROUP) : 1.0f;
    const bool real = row < num_rows && row < span.x + span.y;
    const int position = span.z + row - span.x, low_chunk = chunk_of(first_visible(span.z));
#if WINDOW > 0 && SEEN_CHUNKS <= 20
    OneRequest<COLUMNS_EACH, SEEN_CHUNKS> request;
    request.prepare(partial, partial_ml, num_rows, max_chunks, real ? row : 0, head,
                    real ? position : 0, real ? low_chunk : 0, slice, lane);
    u16* to = out + ((u64)row * Q_HEADS + head) * D + (slice * 32 + lane) * COLUMNS_EACH;
    wait_for_previous_kernel();
    if (real) request.add(to, scale, lane);
#else
    wait_for_previous_kernel();
    if (!real) return;
    combine_row<COLUMNS_EACH, COMBINE_AHEAD, MORE_CHUNKS>(
        out, partial, partial_ml, num_rows, max_chunks, row, head, position, low_chunk, slice,
        scale, lane, split ? warp : 0, split ? WARPS : 1, room);
#endif
}
