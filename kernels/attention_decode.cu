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
//   tickets (B, KV, MAX_GROUPS) u32: scratch, zero before and after every launch
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
// warps takes one (sequence, chunk, kv head, group of 16 MT queries) at a time; queries are rows
// times the GROUP heads that share the kv head. Tiles of 64 keys:
//   scores: warp w has keys 8w .. 8w + 7 and all of D; each lane copies what it needs of K for
//     the B operand into shared memory and reads it there, with D permuted in the same way for Q,
//     which lies in shared memory in the order of the A operand
//   probabilities: shared memory, in the order of the A operand
//   output: warp w has all 64 keys and columns w D / 8 ..; V goes straight into registers, and two
//     keys of one column are put side by side by a byte permutation
// K of the next tile is requested behind the scores, V behind the output, also of the next item's
// first tile. All loads of a loop share one of the assembler's counters, and whoever waits for one
// of them waits for all: so copies fetch K, and nothing else that is waited for is loaded, and no
// loop or branch begins, between V's request and its use.
// e4m3 numbers become f16 exactly, and q and the probabilities (times 2^15) are f16 then, else all
// are bf16. The partial results of a query's chunks are added in ascending order: by the block
// that finishes last where `fused` is set, else by attention_decode_combine. Which of them, MT and
// the number of blocks change no bit; nor do other rows: a hidden key has probability 0, a hidden
// chunk has weight 0, both add exact zeros.
// Multiplications and additions that follow one another are intrinsics: the compiler may fuse them
// in one variant and not in another.
//
// PRECOND: D is 256 or 512; S is a multiple of 16; GROUP is at most 16
// PRECOND: spans, page_table and the keys before each span's first row are written before the
//          step's first launch, which does not overlap the one before it: they are read before
//          the wait for the previous kernel
// PRECOND: max_chunks covers every span
// PRECOND (FP8): |q| < 65,504
// PRECOND: with D 512 MT is 1 (bf16), 1 or 2 (FP8): more would not fit into the registers
// Constants: D, GROUP, KV, S, WINDOW (0: none), FP8 (0, 1), MT (1, 2, 4)

#include "attention_chunks.cuh"
#include "attention_combine.cuh"
#include "attention_tiles.cuh"

#define BLOCKS_PER_SM (MT == 1 && D == 256 ? 2 : 1)
#define FUSED_COLUMNS 2                  // of a lane, in the sum of the chunks by the last block
#define FUSED_AHEAD (FP8 ? 12 : D == 512 ? 8 : 1)   // partial results in flight; more would spill
#define COMBINE_AHEAD 32                 // of one column, in the launch of its own
#define HIDDEN __int_as_float(0xff800000)   // minus infinity: exp gives 0
#define LOG2_E 1.4426950408889634f

// Of one thread for its block, between barriers: far cheaper than each thread's own.
__device__ __forceinline__ void fence_device() {
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

// Before an item's first tile.
__device__ __forceinline__ void start_sums(float (&total)[MT][2], float (&top)[MT][2],
                                           float (&acc)[MT][COLUMNS][4]) {
#pragma unroll
    for (int m = 0; m < MT; ++m) {
        total[m][0] = total[m][1] = 0.0f;
        top[m][0] = top[m][1] = LOWEST;
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[m][j][i] = 0.0f;
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP, BLOCKS_PER_SM) attention_decode(
        u16* __restrict__ out, float* partial, float2* partial_ml, u32* tickets,
        const u16* q, const u8* k_pages, const u8* v_pages,
        const float* __restrict__ k_scale, const float* __restrict__ v_scale,
        const int4* __restrict__ spans, const int* __restrict__ page_table, int fused,
        int num_spans, int num_rows, int max_pages, int max_chunks) {
    extern __shared__ __align__(16) u8 shared[];
    uint4* q_tile = (uint4*)shared;                          // (MT, KSTEPS, 32)
    uint4* p_tile = q_tile + MT * KSTEPS * 32;               // (MT, TILE / 16, 32)
    float* maxima = (float*)(p_tile + MT * (TILE / 16) * 32);    // (WARPS, QUERIES)
    float* sums = maxima + WARPS * QUERIES;                  // (WARPS, QUERIES)
    uint4* k_tile = (uint4*)(sums + WARPS * QUERIES);        // (K_LOADS, WARPS, 32)
    // not in registers: the item whose tiles these are, the next one, and the one after that
    Item *own = (Item*)(k_tile + K_LOADS * WARPS * 32), *ahead = own + 1, *later = own + 2;
    u32 *ticket = (u32*)(own + 3), *zero = ticket + 1;
    float* key_scales = (float*)(zero + 1);                  // (KV), for scores in base 2
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    allow_next_kernel();
    Item item;
    int index = blockIdx.x;
    if (!find_item(item, index, spans, num_spans)) {
        wait_for_previous_kernel();
        return;
    }
    const int* table = page_table + (u64)item.sequence * max_pages;
    const int low_key = first_visible(item.start), end_key = item.start + item.num_rows;
    int tile_key = item.first_key;
    u32 v[TILE / 16][4][V_WORDS];
    // keys before the first row's are in the pages
    const int own_key = warp * 8 + lane / 4;     // of a tile, in the scores
    if (tile_key + own_key < item.start || tile_key + own_key >= end_key)
        request_k(k_tile, k_pages, table, item.kv, tile_key + own_key,
                  tile_key + own_key >= low_key && tile_key + own_key < item.start, lane);
    load_v(v, v_pages, table, item.kv, tile_key, low_key, item.start, true, warp, lane);
    Item next = item;
    index += gridDim.x;
    bool more = find_item(next, index, spans, num_spans);
    if (threadIdx.x == 0) {
        *own = item;
        *ahead = next;
        *zero = 0;
    }
    wait_for_previous_kernel();
    if (tile_key + own_key >= item.start && tile_key + own_key < end_key)
        request_k(k_tile, k_pages, table, item.kv, tile_key + own_key, true, lane);
    commit_copies();
    load_v(v, v_pages, table, item.kv, tile_key, item.start, end_key, false, warp, lane);
    stage_q(q_tile, q, item);
    if (threadIdx.x < KV)
        key_scales[threadIdx.x] = FP8 ? k_scale[threadIdx.x] * LOG2_E : LOG2_E;
    __syncthreads();

    float total[MT][2], top[MT][2], acc[MT][COLUMNS][4];
    start_sums(total, top, acc);
    while (true) {
        float scores[MT][4];
        wait_for_copies<0>();
        multiply_qk(scores, q_tile, k_tile, lane);
        // What comes next, the item's next tile or the next item's first: its K is requested here,
        // its V as soon as this one's is used up.
        const bool last = tile_key + TILE >= own->stop, any = !last || more;
        const Item* then = last ? ahead : own;
        const int first = then->first_key, next_key = last ? first : tile_key + TILE;
        const int key_then = next_key + own_key;
        const int then_start = then->start, then_end = then_start + then->num_rows;
        const bool real = any & (key_then >= first_visible(then_start)) & (key_then < then_end);
        request_k(k_tile, k_pages, page_table + (u64)then->sequence * max_pages, then->kv, key_then,
                  real, lane);
        commit_copies();
        const float to_base_2 = key_scales[own->kv];
        const int start = own->start, end = start + own->num_rows, group = own->group;
        // scores[m][2 h + i]: query 8 h + lane / 4 on key 2 (lane % 4) + i of the warp's
        const int key = tile_key + warp * 8 + lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int query = m * 16 + h * 8 + lane / 4;
                const int position = start + (group * QUERIES + query) / GROUP;
                float most = LOWEST;
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const bool seen = key + i <= position && key + i >= first_visible(position)
                          && position < end;
                    float& score = scores[m][h * 2 + i];
                    score = seen ? __fmul_rn(score, to_base_2) : HIDDEN;
                    most = fmaxf(most, score);
                }
                most = fmaxf(most, __shfl_xor_sync(FULL_MASK, most, 1));
                most = fmaxf(most, __shfl_xor_sync(FULL_MASK, most, 2));
                if (lane % 4 == 0) maxima[warp * QUERIES + query] = most;
            }
        }
        __syncthreads();
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            u32 pairs[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int query = m * 16 + h * 8 + lane / 4;
                float most = top[m][h];
#pragma unroll
                for (int w = 0; w < WARPS; ++w) {
                    most = fmaxf(most, maxima[w * QUERIES + query]);
                }
                const float shrink = exp2_fast(top[m][h] - most);
                top[m][h] = most;
                total[m][h] = __fmul_rn(total[m][h], shrink);
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    acc[m][j][h * 2] *= shrink;
                    acc[m][j][h * 2 + 1] *= shrink;
                }
                const float offset = FP8 ? 15.0f - most : -most;
                const float p0 = exp2_fast(__fadd_rn(scores[m][h * 2], offset));
                const float p1 = exp2_fast(__fadd_rn(scores[m][h * 2 + 1], offset));
                pairs[h] = FP8 ? pack_f16(p0, p1) : pack_bf16(p0, p1);
                float sum = FP8 ? f16_low(pairs[h]) + f16_high(pairs[h])
                      : bf16_low(pairs[h]) + bf16_high(pairs[h]);
                sum += __shfl_xor_sync(FULL_MASK, sum, 1);
                sum += __shfl_xor_sync(FULL_MASK, sum, 2);
                if (lane % 4 == 0) sums[warp * QUERIES + query] = sum;
            }
            uint2* fragment = (uint2*)(p_tile + (m * (TILE / 16) + warp / 2) * 32 + lane);
            fragment[warp % 2] = make_uint2(pairs[0], pairs[1]);
        }
        __syncthreads();
#pragma unroll
        for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
#pragma unroll
                for (int w = 0; w < WARPS; ++w) {
                    total[m][h] = __fadd_rn(
                        total[m][h], sums[w * QUERIES + m * 16 + h * 8 + lane / 4]);
                }
            }
        }
        multiply_pv(acc, p_tile, v, *(volatile u32*)zero, lane);
        tile_key = next_key;
        if (last && more) {              // looked up before loads that a loop would wait for
            Item found = *ahead;
            index += gridDim.x;
            more = find_item(found, index, spans, num_spans);
            if (threadIdx.x == 0) *later = found;
        }
        if (any)
            load_v(v, v_pages, page_table + (u64)then->sequence * max_pages, then->kv, tile_key,
                   first_visible(then->start), then->start + then->num_rows, true, warp, lane);
        if (last) {
#pragma unroll
            for (int m = 0; m < MT; ++m) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int query = own->group * QUERIES + m * 16 + h * 8 + lane / 4;
                    if (query < own->num_rows * GROUP) {
                        const int head = own->kv * GROUP + query % GROUP;
                        const u64 row = own->first_row + query / GROUP;
                        const int chunk = own->chunk - own->low_chunk;
#pragma unroll
                        for (int e = 0; e < 2; ++e) {
                            const int i = h * 2 + e;
                            float* to = partial + partial_place(chunk, num_rows, row, head) * D
                                        + (warp * 8 + lane % 4 * 2 + e) * COLUMNS;
#pragma unroll
                            for (int j = 0; j < COLUMNS; j += 4) {
                                store_vector(to + j, make_float4(
                                    acc[m][j][i], acc[m][j + 1][i], acc[m][j + 2][i],
                                    acc[m][j + 3][i]));
                            }
                        }
                        if (warp == 0 && lane % 4 == 0) {
                            partial_ml[(row * Q_HEADS + head) * max_chunks + chunk] =
                                make_float2(top[m][h], total[m][h]);
                        }
                    }
                }
            }
            __syncthreads();                 // also: all have read q_tile, p_tile and sums
            if (fused) {
                u32* counter = tickets
                               + (own->sequence * KV + own->kv) * MAX_GROUPS + own->group;
                if (threadIdx.x == 0) {
                    fence_device();
                    *ticket = atomicAdd(counter, 1u);
                    fence_device();
                }
                __syncthreads();
                if (*ticket == own->num_chunks - 1) {
                    const int first = own->group * QUERIES;
                    const int count = min(QUERIES, own->num_rows * GROUP - first);
                    const float scale = FP8 ? v_scale[own->kv] : 1.0f;
                    const int slices = D / (32 * FUSED_COLUMNS);
                    for (int i = warp; i < count * slices; i += WARPS) {
                        const int query = first + i / slices, row = query / GROUP;
                        combine_row<FUSED_COLUMNS, FUSED_AHEAD>(
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
            if (!same) stage_q(q_tile, q, *ahead);
            __syncthreads();             // all have read the items
            if (threadIdx.x == 0) {
                *own = *ahead;
                *ahead = *later;
            }
            __syncthreads();
            start_sums(total, top, acc);
        }
    }
}

// One warp for each 32 columns of each of the T Q query heads; with `split` all warps of a block.
// Rows of no span: untouched.
extern "C" __global__ void __launch_bounds__(WARPS * WARP, 2) attention_decode_combine(
        u16* __restrict__ out, const float* partial, const float2* partial_ml,
        const float* __restrict__ v_scale, const int4* __restrict__ spans, int split,
        int num_spans, int num_rows, int max_chunks) {
    __shared__ float2 room[MAX_CHUNKS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int index = split ? blockIdx.x : blockIdx.x * WARPS + warp;
    const int slice = index % (D / 32), head = index / (D / 32) % Q_HEADS;
    const int row = index / (D / 32) / Q_HEADS;
    allow_next_kernel();
    wait_for_previous_kernel();
    if (row >= num_rows) return;
    for (int b = 0; b < num_spans; ++b) {
        const int4 span = spans[b];
        if (row < span.x || row >= span.x + span.y) continue;
        combine_row<1, COMBINE_AHEAD>(
            out, partial, partial_ml, num_rows, max_chunks, row, head, span.z + row - span.x,
            chunk_of(first_visible(span.z)), slice, FP8 ? v_scale[head / GROUP] : 1.0f, lane,
            split ? warp : 0, split ? WARPS : 1, room);
        return;
    }
}
