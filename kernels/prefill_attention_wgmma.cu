// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// out = softmax(q K^T) V over the pages of each sequence, for prompt rows: what
// prefill_attention.cu does, by the matrix products of a warpgroup (sm_90a), for head dim 512.
//
//   q, out (T, Q, D) bf16
//   k_pages, v_pages (P, S, KV, D) bf16, or e4m3 that k_scale and v_scale (KV) multiply
//   spans (B) = {first row, rows (0: none), position of the first row, sees_block}
//   page_table (B, max_pages); entries below the window and past the last row are never read
//   blocks (T) = [first, end) positions of the image that a row belongs to, else of the row alone;
//     only read with BLOCKS
//
// The scale is 1 (it sits in the norms). Which keys a row sees: prefill_attention.cu.
//
// Bytes: per block q, out and K and V of the keys that its rows see, 2 D numbers a key mostly from
// the L2. Bound by the matrix units; by the right operands, half of what shared memory gives.
//
// Mapping. One block takes 64 queries (rows times the GROUP heads of one kv head) and walks their
// keys in tiles of 128 at absolute positions, ascending, with a running maximum. Products are
// transposed, keys x queries and columns x queries, so that K and V are left operands, which come
// from registers: e4m3 becomes f16 there, exactly, and shared memory never holds it as f16. Right
// operands are q and the probabilities. Each of 8 warps has 16 keys of a tile for the scores and
// 64 columns of V for the result, which nobody else reads: prefill_slices.cuh. Requests, operands
// and products take turns in small units, so that none of them waits long for another. Two
// barriers a tile: maxima, probabilities.
// Roundings: prefill_attention.cu. A tile in which a row sees nothing multiplies its sums by 1 and
// adds exact zeros: so neither the borders of chunks nor a row's neighbours change a bit.
//
// PRECOND: D is 512; S is a multiple of 16; GROUP is at most 16
// PRECOND: spans and page_table are written before the step's first launch
// PRECOND (FP8): |q| < 65,504
// PRECOND (BLOCKS): a block lies wholly among its span's rows
// Constants: D, GROUP, KV, S, WINDOW (0: none), FP8 (0, 1), BLOCKS (0, 1, 2).

#include "prefill_tile.cuh"
#include "wgmma.cuh"
#include "prefill_slices.cuh"

#define Q_HEADS (KV * GROUP)
#define THREADS (WARPS * WARP)
#define SLAB_BYTES (QUERIES * 128)       // of a right operand: 64 numbers of each query
#define HIDDEN __int_as_float(0xff800000)
#define LOWEST (-1e30f)
#define LOG2_E 1.4426950408889634f

__device__ __forceinline__ int first_visible(int position) {
    return WINDOW > 0 ? max(0, position - WINDOW + 1) : 0;
}

// The first and the last key that the row of a span at a position sees.
__device__ __forceinline__ int first_seen(const int* blocks, int row, int position) {
    const int first = first_visible(position);
    return BLOCKS == 2 ? min(first, blocks[2 * row]) : first;
}

__device__ __forceinline__ int last_seen(const int* blocks, int row, int position) {
    return BLOCKS > 0 ? max(position, blocks[2 * row + 1] - 1) : position;
}

__device__ __forceinline__ void multiply(float (&c)[32], const u32 (&a)[4], u64 b, bool add) {
    if (FP8) {
        product_f16(c, a, b, add);
    } else {
        product_bf16(c, a, b, add);
    }
}

// The queries as right operands, zeros past the last: 64 numbers in a slab, 32 of them, two steps,
// in the order in which four lanes have eight neighbours of a key each.
__device__ __forceinline__ void stage_q(u8* q_tile, const u16* q, const Block& block) {
    const int vectors = D / 8;
#pragma unroll 4
    for (int i = threadIdx.x; i < QUERIES * vectors; i += THREADS) {
        const int row = i / vectors, vector = i % vectors, query = block.first_query + row;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (query < block.num_rows * GROUP) {
            const u64 place = (u64)(block.first_row + query / GROUP) * Q_HEADS + block.kv * GROUP
                              + query % GROUP;
            v = load_activations(q + place * D + vector * 8);
        }
        u32 pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (FP8) pairs[j] = pack_f16(bf16_low(pairs[j]), bf16_high(pairs[j]));
            const int step = vector / 4 * 2 + j / 2;
            u8* line = q_tile + step / 4 * SLAB_BYTES + row * 128;
            *(u32*)(line + SWIZZLED(row, step % 4 * 2 + j % 2) * 16 + vector % 4 * 4) = pairs[j];
        }
    }
}

// A lane's first HALF numbers with those of another lane; lanes whose bit 2 HALF is set go on with
// the upper ones.
template <bool IS_SUM, int HALF>
__device__ __forceinline__ void fold(float (&x)[16], int lane) {
    const u32 upper = lane & 2 * HALF ? 0xffffffffu : 0;
#pragma unroll
    for (int c = 0; c < HALF; ++c) {
        const u32 low = __float_as_uint(x[c]), high = __float_as_uint(x[c + HALF]);
        const float own = __uint_as_float(bits_of_either(upper, high, low));
        const float other = __uint_as_float(__shfl_xor_sync(
            FULL_MASK, bits_of_either(upper, low, high), 2 * HALF));
        x[c] = IS_SUM ? __fadd_rn(own, other) : fmaxf(own, other);
    }
}

// Of 16 numbers a lane, one per query of it, over the eight lanes that have the same: lane i gets
// those of queries 2 i and 2 i + 1 in x[0] and x[1]. The order of a sum is fixed.
template <bool IS_SUM>
__device__ __forceinline__ void reduce_queries(float (&x)[16], int lane) {
    fold<IS_SUM, 8>(x, lane);
    fold<IS_SUM, 4>(x, lane);
    fold<IS_SUM, 2>(x, lane);
}

// The scores of this warp's 16 keys, scores[4 j + i] of key g + 8 (i / 2) and query
// 8 j + 2 t + i % 2; refill(slice, unit) behind each unit's products.
template <typename Refill>
__device__ __forceinline__ void multiply_qk(float (&scores)[32], u32 (&a)[2][2][4], const u8* ring,
                                            u64 q_operand, int lane, const Refill& refill) {
#pragma unroll
    for (int slice = 0; slice < K_SLICES; ++slice) {
        const u8* slot = ring + slice * SLOT_BYTES;
        wait_for_copies<SLOTS - 2>();
        __syncwarp();                    // all lanes' copies; and all have read the slot before
        Raw raw = load_k(slot, 0, lane);
#pragma unroll
        for (int unit = 0; unit < UNITS; ++unit) {
            unpack_k(a[unit % 2], raw);
            if (unit + 1 < UNITS) raw = load_k(slot, unit + 1, lane);
            begin_products();
#pragma unroll
            for (int step = 0; step < 2; ++step) {
                const int s = (slice * UNITS + unit) * 2 + step;
                multiply(scores, a[unit % 2][step],
                         q_operand + s / 4 * (SLAB_BYTES / 16) + s % 4 * 2, s > 0);
            }
            commit_products();
            refill(slice, unit);
            wait_for_products<1>();
        }
        commit_copies();
    }
}

struct Softmax {
    float top[2], shrink[2];             // of queries 2 lane, 2 lane + 1: maximum, last factor
    float total[16];                     // of this lane's queries and keys
    bool shrinks;                        // some factor of the warp is not 1
};

// Scores to base 2, keys that a row does not see hidden; this warp's maxima.
__device__ __forceinline__ void find_maxima(float (&scores)[32], float2* maxima, float to_base_2,
                                            bool all_seen, int key, const int* first_keys,
                                            const int* last_keys, int lane) {
    const int t = lane & 3;
    float most[16];
#pragma unroll
    for (int i = 0; i < 32; ++i) scores[i] = __fmul_rn(scores[i], to_base_2);
    if (!all_seen) {
#pragma unroll
        for (int c = 0; c < 16; ++c) {
            const int query = c / 2 * 8 + 2 * t + c % 2, place = c / 2 * 4 + c % 2;
            const int first = first_keys[query], last = last_keys[query];
            if (key > last || key < first) scores[place] = HIDDEN;
            if (key + 8 > last || key + 8 < first) scores[place + 2] = HIDDEN;
        }
    }
#pragma unroll
    for (int c = 0; c < 16; ++c) {
        most[c] = fmaxf(scores[c / 2 * 4 + c % 2], scores[c / 2 * 4 + c % 2 + 2]);
    }
    reduce_queries<false>(most, lane);
    maxima[threadIdx.x / WARP * (QUERIES / 2) + lane] = make_float2(most[0], most[1]);
}

// All warps' maxima; the sums so far shrink.
__device__ __forceinline__ void take_maxima(Softmax& softmax, const float2* maxima, int lane) {
    float most[2] = {softmax.top[0], softmax.top[1]};
#pragma unroll
    for (int other = 0; other < WARPS; ++other) {
        const float2 pair = maxima[other * (QUERIES / 2) + lane];
        most[0] = fmaxf(most[0], pair.x), most[1] = fmaxf(most[1], pair.y);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        softmax.shrink[i] = exp2_fast(softmax.top[i] - most[i]);
        softmax.top[i] = most[i];
    }
    // most tiles raise no maximum any more: a factor of 1 is left out
    softmax.shrinks = __ballot_sync(FULL_MASK, softmax.shrink[0] != 1.0f
                                    || softmax.shrink[1] != 1.0f) != 0;
    if (softmax.shrinks) {
#pragma unroll
        for (int c = 0; c < 16; ++c) {
            softmax.total[c] = __fmul_rn(softmax.total[c], __shfl_sync(
                FULL_MASK, softmax.shrink[c % 2], c / 2 * 4 + (lane & 3)));
        }
    }
}

// Probabilities of queries 8 j + 2 t and the next of this lane's two keys, as right operand.
__device__ __forceinline__ void store_p(Softmax& softmax, const float (&scores)[32], u8* p_slab,
                                        int j, int lane) {
    const int warp = threadIdx.x / WARP, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int query = j * 8 + 2 * t + i, place = j * 4 + i;
        const float top = __shfl_sync(FULL_MASK, softmax.top[i], j * 4 + t);
        const float offset = FP8 ? 15.0f - top : -top;
        const float p0 = exp2_fast(__fadd_rn(scores[place], offset));
        const float p1 = exp2_fast(__fadd_rn(scores[place + 2], offset));
        const u32 pair = FP8 ? pack_f16(p0, p1) : pack_bf16(p0, p1);
        softmax.total[2 * j + i] = __fadd_rn(
            softmax.total[2 * j + i], FP8 ? __fadd_rn(f16_low(pair), f16_high(pair))
                                      : __fadd_rn(bf16_low(pair), bf16_high(pair)));
        *(u32*)(p_slab + query * 128 + SWIZZLED(query, warp % 4 * 2 + g / 4) * 16 + g % 4 * 4) =
            pair;
    }
}

// The sums so far, by the factors of the latest maxima.
__device__ __forceinline__ void shrink_result(float (&acc)[4][32], const Softmax& softmax,
                                              int lane) {
    if (!softmax.shrinks) return;
#pragma unroll
    for (int c = 0; c < 16; ++c) {
        const float factor = __shfl_sync(FULL_MASK, softmax.shrink[c % 2],
                                         c / 2 * 4 + (lane & 3));
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            float* two = acc[m] + c / 2 * 4 + c % 2;
            two[0] = __fmul_rn(two[0], factor), two[2] = __fmul_rn(two[2], factor);
        }
    }
}

// acc += V^T P^T of a tile, likewise; acc[m][4 j + i] of one of this warp's columns and query
// 8 j + 2 t + i % 2. A unit is 16 keys and half of the columns.
template <typename Refill>
__device__ __forceinline__ void multiply_pv(float (&acc)[4][32], u32 (&a)[2][2][4], const u8* ring,
                                            u64 p_operand, int lane, const Refill& refill) {
#pragma unroll
    for (int slice = 0; slice < V_SLICES; ++slice) {
        const u8* slot = ring + slice * SLOT_BYTES;
        wait_for_copies<SLOTS - 2>();
        __syncwarp();
        Raw raw = load_v(slot, 0, 0, lane);
#pragma unroll
        for (int unit = 0; unit < UNITS; ++unit) {
            const int half = unit % 2, s = slice * (UNITS / 2) + unit / 2;
            unpack_v(a[half], raw);
            if (unit + 1 < UNITS) raw = load_v(slot, (unit + 1) / 2, 1 - half, lane);
            begin_products();
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                multiply(acc[2 * half + m], a[half][m],
                         p_operand + s / 4 * (SLAB_BYTES / 16) + s % 4 * 2, true);
            }
            commit_products();
            refill(slice, unit);
            wait_for_products<1>();
        }
        commit_copies();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prefill_attention_wgmma(u16* __restrict__ out, const u16* q, const u8* k_pages, const u8* v_pages,
                        const float* __restrict__ k_scale, const float* __restrict__ v_scale,
                        const int4* __restrict__ spans, const int* __restrict__ page_table,
                        const int* __restrict__ blocks, int max_pages) {
    extern __shared__ __align__(1024) u8 shared[];
    u8* q_tile = shared;                                     // (D / 64, QUERIES) of 128 bytes
    u8* p_tile = q_tile + D / 64 * SLAB_BYTES;               // (TILE / 64, QUERIES) of 128 bytes
    u8* rings = p_tile + TILE / 64 * SLAB_BYTES;             // (WARPS, SLOTS)
    float2* maxima = (float2*)(rings + WARPS * RING_BYTES);  // (WARPS, QUERIES / 2)
    int* first_keys = (int*)(maxima + WARPS * QUERIES / 2);  // (QUERIES)
    int* last_keys = first_keys + QUERIES;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane >> 2, t = lane & 3;
    allow_next_kernel();
    wait_for_previous_kernel();
    const int4 span = spans[blockIdx.y];
    // the last rows see the most keys, so they come first, of all kv heads
    const int num_groups = (span.y * GROUP + QUERIES - 1) / QUERIES;
    const int group = num_groups - 1 - (int)blockIdx.x / KV;
    if (group < 0) return;
    Block block;
    block.first_row = span.x, block.num_rows = span.y;
    block.kv = blockIdx.x % KV;
    block.first_query = group * QUERIES;
    // later rows see no earlier key than the first one, earlier ones no later key than the last
    const int first_row = block.first_query / GROUP;
    block.low_key = first_seen(blocks, span.x + first_row, span.z + first_row);
    const int last_row = min(span.y - 1, (block.first_query + QUERIES - 1) / GROUP);
    block.end_key = span.w != 0 ? span.z + span.y
                    : last_seen(blocks, span.x + last_row, span.z + last_row) + 1;
    const int* table = page_table + (u64)blockIdx.y * max_pages;

    u8* ring = rings + warp * RING_BYTES;
    int tile_key = block.low_key / TILE * TILE;
    int page = find_page(table, block, tile_key, lane);
    int next_page = find_page(table, block, tile_key + TILE, lane);
    // a slice is requested three before it is used: those of K, of V, of the next tile's K
    const u8* from;
    const auto request_k = [&](int slot, int pages, int key, int slice, int unit) {
#pragma unroll
        for (int i = 0; i < 8 / UNITS; ++i) {
            copy_k(ring + slot * SLOT_BYTES, from, k_pages, pages, block, key, slice,
                   unit * (8 / UNITS) + i, lane);
        }
    };
    const auto request_v = [&](int slot, int pages, int key, int slice, int unit) {
#pragma unroll
        for (int i = 0; i < 8 / UNITS; ++i) {
            copy_v(ring + slot * SLOT_BYTES, from, v_pages, pages, block, key, slice,
                   unit * (8 / UNITS) + i, lane);
        }
    };
#pragma unroll
    for (int slice = 0; slice < SLOTS - 1; ++slice) {
#pragma unroll
        for (int unit = 0; unit < UNITS; ++unit) {
            if (slice < K_SLICES) request_k(slice, page, tile_key, slice, unit);
            else request_v(slice, page, tile_key, slice - K_SLICES, unit);
        }
        commit_copies();
    }
    stage_q(q_tile, q, block);
    // a lane's queries here, as wherever one lane has one pair of queries: 2 lane, 2 lane + 1
    u32 most_first = 0, least_last = 0x7fffffffu;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const int row = min((block.first_query + 2 * lane + i) / GROUP, span.y - 1);
        const int first = first_seen(blocks, span.x + row, span.z + row);
        const int last = span.w != 0 ? block.end_key - 1
                         : last_seen(blocks, span.x + row, span.z + row);
        if (warp == 0) first_keys[2 * lane + i] = first, last_keys[2 * lane + i] = last;
        most_first = max(most_first, (u32)first), least_last = min(least_last, (u32)last);
    }
    most_first = __reduce_max_sync(FULL_MASK, most_first);
    least_last = __reduce_min_sync(FULL_MASK, least_last);
    publish_to_products();
    __syncthreads();                     // Q, and which keys are seen

    const u64 q_operand = product_operand(q_tile);
    const float to_base_2 = FP8 ? k_scale[block.kv] * LOG2_E : LOG2_E;
    Softmax softmax;
    softmax.top[0] = softmax.top[1] = LOWEST;
    float acc[4][32], scores[32];
#pragma unroll
    for (int c = 0; c < 16; ++c) softmax.total[c] = 0.0f;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int i = 0; i < 32; ++i) acc[m][i] = 0.0f;
    }
    u32 a[2][2][4];                      // one is loaded while products read the other
    u8* p_slab = p_tile + warp / 4 * SLAB_BYTES;
    const auto sees_all = [&](int key) {
        return key >= (int)most_first && key + TILE - 1 <= (int)least_last;
    };
    u64 p_operand = product_operand(p_tile);
    while (true) {
        multiply_qk(scores, a, ring, q_operand, lane, [&](int slice, int unit) {
            if (FP8 && slice == 0) request_v(3, page, tile_key, 1, unit);
            else if (FP8) request_k(0, next_page, tile_key + TILE, 0, unit);
            else if (slice == 0) request_k(3, page, tile_key, 3, unit);
            else request_v(slice - 1, page, tile_key, slice - 1, unit);
        });
        wait_for_products<0>();
        hold_result(scores);
        find_maxima(scores, maxima, to_base_2, sees_all(tile_key), tile_key + 16 * warp + g,
                    first_keys, last_keys, lane);
        __syncthreads();                 // the maxima; and all have read the probabilities
        take_maxima(softmax, maxima, lane);
        shrink_result(acc, softmax, lane);
#pragma unroll
        for (int j = 0; j < 8; ++j) store_p(softmax, scores, p_slab, j, lane);
        publish_to_products();
        __syncthreads();                 // the probabilities
        multiply_pv(acc, a, ring + K_SLICES % SLOTS * SLOT_BYTES, p_operand, lane,
                    [&](int slice, int unit) {
            if (FP8 && slice == 0) request_k(1, next_page, tile_key + TILE, 1, unit);
            else if (FP8) request_v(2, next_page, tile_key + TILE, 0, unit);
            else if (slice == 0) request_v(3, page, tile_key, 3, unit);
            else request_k(slice - 1, next_page, tile_key + TILE, slice - 1, unit);
        });
        wait_for_products<0>();
#pragma unroll
        for (int m = 0; m < 4; ++m) hold_result(acc[m]);
        tile_key += TILE;
        if (tile_key >= block.end_key) break;
        page = next_page;
        next_page = find_page(table, block, tile_key + TILE, lane);
    }
    wait_for_copies<0>();

    reduce_queries<true>(softmax.total, lane);
    maxima[warp * (QUERIES / 2) + lane] = make_float2(softmax.total[0], softmax.total[1]);
    __syncthreads();
    float sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int other = 0; other < WARPS; ++other) {
        const float2 pair = maxima[other * (QUERIES / 2) + lane];
        sum[0] = __fadd_rn(sum[0], pair.x), sum[1] = __fadd_rn(sum[1], pair.y);
    }
    const float scale = FP8 ? v_scale[block.kv] : 1.0f;
    sum[0] = __fdiv_rn(scale, sum[0]), sum[1] = __fdiv_rn(scale, sum[1]);
#pragma unroll
    for (int c = 0; c < 16; ++c) {
        const float factor = __shfl_sync(FULL_MASK, sum[c % 2], c / 2 * 4 + t);
        const int query = block.first_query + c / 2 * 8 + 2 * t + c % 2;
        u16* row = out + ((u64)(span.x + query / GROUP) * Q_HEADS + block.kv * GROUP
                          + query % GROUP) * D + warp * 64;
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            const float low = __fmul_rn(acc[m][c / 2 * 4 + c % 2], factor);
            const float high = __fmul_rn(acc[m][c / 2 * 4 + c % 2 + 2], factor);
            u32 pair = pack_bf16(low, high);         // columns 2 g, 2 g + 1 of 16
            int column = 2 * g;
            if (!FP8) {                              // g, g + 8: lanes of g and g ^ 1 swap
                const float other = __shfl_xor_sync(FULL_MASK, g % 2 ? low : high, 4);
                pair = g % 2 ? pack_bf16(other, high) : pack_bf16(low, other);
                column = g % 2 ? g + 7 : g;
            }
            if (query < span.y * GROUP) *(u32*)(row + m * 16 + column) = pair;
        }
    }
}
