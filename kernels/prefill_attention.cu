// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// out = softmax(q K^T) V over the pages of each sequence, for prompt rows.
//
//   q, out (T, Q, D) bf16
//   k_pages, v_pages (P, S, KV, D) bf16, or e4m3 that k_scale and v_scale (KV) multiply
//   spans (B) = {first row, rows (0: none), position of the first row, sees_block}
//   page_table (B, max_pages); entries below the window and past the last row are never read
//   blocks (T) = [first, end) positions of the image that a row belongs to, else of the row alone;
//     only read with BLOCKS
//
// The scale is 1 (it sits in the norms). Row i sees the keys 0 .. its position, with a window the
// last WINDOW of them; with sees_block also the keys of the span's later rows. BLOCKS 1: also the
// later keys of its block; 2: all of its block, beyond the window too.
//
// Bytes: per block q, out and K and V of the keys that its rows see, 2 D bytes a number of K and V
// mostly from the L2. Bound by the matrix units and, close behind, by shared memory.
//
// Mapping. One block takes 16 QUERY_WARPS queries (rows times the GROUP heads of one kv head) and
// walks their keys in tiles of TILE at absolute positions, ascending, with a running maximum.
// 16 queries belong to one warp (D 256), or to two (D 512) that share out the keys of a tile for
// the scores and the columns of V for the result, and exchange maxima and probabilities. K and V
// come by asynchronous copies: the next K under the softmax and P V, the next V under Q K^T.
//   scores: a lane reads 16 bytes of a key, the B operand of two steps (four of e4m3), with D
//     permuted in the same way for Q
//   output: ldmatrix turns V; of e4m3 two neighbouring columns travel as one 16-bit number
// e4m3 numbers become f16 exactly, and q and the probabilities (times 2^15) are f16 then, else all
// are bf16. A tile in which a row sees nothing multiplies its sums by 1 and adds exact zeros: so
// neither the borders of chunks nor a row's neighbours nor QUERY_WARPS change a bit.
// Vectors of 16 bytes are swapped about within a row of shared memory so that eight lanes that are
// served together meet all banks.
//
// PRECOND: D is 256 or 512; S is a multiple of 16; GROUP is at most 16
// PRECOND: spans and page_table are written before the step's first launch
// PRECOND (FP8): |q| < 65,504
// PRECOND (BLOCKS): a block lies wholly among its span's rows
// Constants: D, GROUP, KV, S, WINDOW (0: none), FP8 (0, 1), QUERY_WARPS, BLOCKS (0, 1, 2).

#include "prefill_tile.cuh"

#define Q_HEADS (KV * GROUP)
#define PARTS (D / 256)                  // warps that share 16 queries
#define WARPS (QUERY_WARPS * PARTS)
#define THREADS (WARPS * WARP)
#define QUERIES (16 * QUERY_WARPS)
#define TILE (64 / PARTS)                // keys
#define ELEMENT (FP8 ? 1 : 2)
#define ROW_BYTES (D * ELEMENT)          // of a key
#define ROW_VECTORS (ROW_BYTES / 16)
#define KEY_TILES (TILE / 8 / PARTS)     // of 8 keys, per warp
#define STEPS (TILE / 16)
#define COLUMN_TILES 32                  // of 8 columns of V, per warp
#define HIDDEN __int_as_float(0xff800000)
#define LOWEST (-1e30f)
#define LOG2_E 1.4426950408889634f

// Places of a 16-byte vector in a row of shared memory.
#define Q_PLACE(row, vector) ((vector) ^ (FP8 ? (row) & 1 : ((row) & 1) << 2))
#define K_PLACE(row, vector) ((vector) ^ ((row) & 1) << 2)
#define V_PLACE(row, vector) ((vector) ^ ((row) & 7))

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

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if (FP8) {
        mma_f16(c, a[0], a[1], a[2], a[3], b0, b1);
    } else {
        mma_bf16(c, a[0], a[1], a[2], a[3], b0, b1);
    }
}

struct Block {
    int first_row, num_rows, start;      // of the span; start: position of its first row
    int first_query, low_key, end_key;   // of this block; keys that some row sees
    bool sees_block;
    int kv;
};

// The queries as the multiplier wants them, zeros past the last.
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
        if (FP8) {
            v = make_uint4(pack_f16(bf16_low(v.x), bf16_high(v.x)),
                           pack_f16(bf16_low(v.y), bf16_high(v.y)),
                           pack_f16(bf16_low(v.z), bf16_high(v.z)),
                           pack_f16(bf16_low(v.w), bf16_high(v.w)));
        }
        *(uint4*)(q_tile + (row * vectors + Q_PLACE(row, vector)) * 16) = v;
    }
}

// Requests K or V of TILE keys from tile_key on; zeros for keys that no row of the block sees.
template <bool IS_V>
__device__ __forceinline__ void copy_keys(u8* tile, const u8* pages, const int* table,
                                          const Block& block, int tile_key) {
#pragma unroll
    for (int j = 0; j < TILE * ROW_VECTORS / THREADS; ++j) {
        const int i = j * THREADS + threadIdx.x;
        const int row = i / ROW_VECTORS, vector = i % ROW_VECTORS, key = tile_key + row;
        const bool real = key >= block.low_key && key < block.end_key;
        const u8* from = pages;
        if (real) {
            from += (((u64)table[key / S] * S + key % S) * KV + block.kv) * ROW_BYTES
                    + vector * 16;
        }
        const int place = IS_V ? V_PLACE(row, vector) : K_PLACE(row, vector);
        copy_async(tile + (row * ROW_VECTORS + place) * 16, from, real);
    }
}

// Scores of this warp's 16 queries on its keys, 8 in each of scores[n].
__device__ __forceinline__ void multiply_qk(float (&scores)[KEY_TILES][4], const u8* q_tile,
                                            const u8* k_tile, int query_warp, int part, int lane) {
    const int g = lane >> 2, t = lane & 3, low = query_warp * 16 + g;
    const uint4* q_low = (const uint4*)(q_tile + low * D * 2);
    const uint4* q_high = (const uint4*)(q_tile + (low + 8) * D * 2);
    const uint4* k_rows = (const uint4*)(k_tile + (part * KEY_TILES * 8 + g) * ROW_BYTES);
#pragma unroll
    for (int n = 0; n < KEY_TILES; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
    }
#pragma unroll 2
    for (int base = 0; base < ROW_VECTORS; base += 4) {      // four lanes' vectors
        u32 a[FP8 ? 4 : 2][4];
#pragma unroll
        for (int pair = 0; pair < (FP8 ? 2 : 1); ++pair) {
            const int vector = FP8 ? base * 2 + 2 * t + pair : base + t;
            const uint4 first = q_low[Q_PLACE(low, vector)];
            const uint4 second = q_high[Q_PLACE(low, vector)];
            a[2 * pair][0] = first.x, a[2 * pair][1] = second.x;
            a[2 * pair][2] = first.y, a[2 * pair][3] = second.y;
            a[2 * pair + 1][0] = first.z, a[2 * pair + 1][1] = second.z;
            a[2 * pair + 1][2] = first.w, a[2 * pair + 1][3] = second.w;
        }
#pragma unroll
        for (int n = 0; n < KEY_TILES; ++n) {
            const uint4 k = k_rows[n * 8 * ROW_VECTORS + K_PLACE(g, base + t)];
            if (FP8) {
                const u32 words[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
                for (int step = 0; step < (FP8 ? 4 : 2); ++step) {
                    multiply(scores[n], a[step], e4m3_to_f16(words[step] & 0xffffu),
                             e4m3_to_f16(words[step] >> 16));
                }
            } else {
                multiply(scores[n], a[0], k.x, k.y);
                multiply(scores[n], a[1], k.z, k.w);
            }
        }
    }
}

typedef float Result[COLUMN_TILES][4];

// acc += P V for 16 keys in this warp's 256 columns.
__device__ __forceinline__ void multiply_pv(Result& acc, const u32 (&p)[4], const u8* v_tile,
                                            int step, int part, int lane) {
    // lanes 0..15 point at the keys of one vector of columns, 16..31 at those of the next
    const int row = step * 16 + lane % 16, vectors = 16 * ELEMENT;
    const uint4* keys = (const uint4*)(v_tile + row * ROW_BYTES);
#pragma unroll
    for (int c = 0; c < vectors; c += 2) {
        u32 m[4];
        load_transposed(m, keys + V_PLACE(row, part * vectors + c + lane / 16));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 low = m[2 * i], high = m[2 * i + 1];
            if (FP8) {
                // bytes: two columns of key 2 t, the same two of key 2 t + 1
                multiply(acc[2 * (c + i)], p, e4m3_to_f16(__byte_perm(low, 0, 0x4420)),
                         e4m3_to_f16(__byte_perm(high, 0, 0x4420)));
                multiply(acc[(2 * (c + i) + 1) % COLUMN_TILES], p,
                         e4m3_to_f16(__byte_perm(low, 0, 0x4431)),
                         e4m3_to_f16(__byte_perm(high, 0, 0x4431)));
            } else {
                multiply(acc[c + i], p, low, high);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prefill_attention(u16* __restrict__ out, const u16* q, const u8* k_pages, const u8* v_pages,
                  const float* __restrict__ k_scale, const float* __restrict__ v_scale,
                  const int4* __restrict__ spans, const int* __restrict__ page_table,
                  const int* __restrict__ blocks, int max_pages) {
    extern __shared__ __align__(16) u8 shared[];
    u8* q_tile = shared;                                     // (QUERIES, D) of 16 bits
    u8* k_tile = q_tile + QUERIES * D * 2;                   // (TILE, D)
    u8* v_tile = k_tile + TILE * ROW_BYTES;
    uint4* p_tile = (uint4*)(v_tile + TILE * ROW_BYTES);     // (QUERY_WARPS, STEPS, 32)
    float* maxima = (float*)(p_tile + QUERY_WARPS * STEPS * 32);     // (PARTS, QUERIES); these
    float* sums = maxima + PARTS * QUERIES;                  // three for PARTS > 1 only
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, t = lane & 3;
    const int query_warp = warp / PARTS, part = warp % PARTS;
    allow_next_kernel();
    wait_for_previous_kernel();
    const int4 span = spans[blockIdx.z];
    // the last rows see the most keys, so they come first
    const int num_groups = (span.y * GROUP + QUERIES - 1) / QUERIES;
    const int group = num_groups - 1 - (int)blockIdx.x;
    if (group < 0) return;
    Block block;
    block.first_row = span.x, block.num_rows = span.y, block.start = span.z;
    block.sees_block = span.w != 0;
    block.kv = blockIdx.y;
    block.first_query = group * QUERIES;
    // later rows see no earlier key than the first one, earlier rows no later key than the last one
    const int first_row = block.first_query / GROUP;
    block.low_key = first_seen(blocks, span.x + first_row, span.z + first_row);
    const int last_row = min(span.y - 1, (block.first_query + QUERIES - 1) / GROUP);
    block.end_key = block.sees_block ? span.z + span.y
                    : last_seen(blocks, span.x + last_row, span.z + last_row) + 1;
    const int* table = page_table + (u64)blockIdx.z * max_pages;

    int tile_key = block.low_key / TILE * TILE;
    copy_keys<false>(k_tile, k_pages, table, block, tile_key);
    commit_copies();
    copy_keys<true>(v_tile, v_pages, table, block, tile_key);
    commit_copies();
    stage_q(q_tile, q, block);

    // this lane's queries: rows g and g + 8 of the warp's 16
    int first_key[2], last_key[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int query = block.first_query + query_warp * 16 + h * 8 + lane / 4;
        const int row = min(query / GROUP, span.y - 1);
        first_key[h] = first_seen(blocks, span.x + row, span.z + row);
        last_key[h] = block.sees_block ? block.end_key - 1
                      : last_seen(blocks, span.x + row, span.z + row);
    }
    const float to_base_2 = FP8 ? k_scale[block.kv] * LOG2_E : LOG2_E;
    float top[2] = {LOWEST, LOWEST}, total[2] = {0.0f, 0.0f};
    Result acc;
#pragma unroll
    for (int j = 0; j < COLUMN_TILES; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[j][i] = 0.0f;
    }
    while (true) {
        wait_for_copies<1>();
        __syncthreads();                 // K, in the first round Q
        float scores[KEY_TILES][4];
        multiply_qk(scores, q_tile, k_tile, query_warp, part, lane);
        float most[2] = {LOWEST, LOWEST};
#pragma unroll
        for (int n = 0; n < KEY_TILES; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int key = tile_key + (part * KEY_TILES + n) * 8 + 2 * t + i % 2;
                const bool seen = key <= last_key[i / 2] && key >= first_key[i / 2];
                scores[n][i] = seen ? __fmul_rn(scores[n][i], to_base_2) : HIDDEN;
                most[i / 2] = fmaxf(most[i / 2], scores[n][i]);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            most[h] = fmaxf(most[h], __shfl_xor_sync(FULL_MASK, most[h], 1));
            most[h] = fmaxf(most[h], __shfl_xor_sync(FULL_MASK, most[h], 2));
            if (PARTS > 1 && t == 0) {
                maxima[part * QUERIES + query_warp * 16 + h * 8 + lane / 4] = most[h];
            }
        }
        __syncthreads();                 // the maxima; and all have read K
        const int next_key = tile_key + TILE;
        const bool has_next = next_key < block.end_key;
        if (has_next) copy_keys<false>(k_tile, k_pages, table, block, next_key);
        commit_copies();
        float shrink[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (PARTS > 1) {
#pragma unroll
                for (int other = 0; other < PARTS; ++other) {
                    most[h] = fmaxf(most[h], maxima[other * QUERIES + query_warp * 16 + h * 8
                                                    + lane / 4]);
                }
            }
            most[h] = fmaxf(most[h], top[h]);
            shrink[h] = exp2_fast(top[h] - most[h]);
            top[h] = most[h];
            total[h] = __fmul_rn(total[h], shrink[h]);
        }
        // most rounds raise no maximum any more: a factor of 1 is left out
        if (__ballot_sync(FULL_MASK, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
            for (int j = 0; j < COLUMN_TILES; ++j) {
#pragma unroll
                for (int i = 0; i < 4; ++i) acc[j][i] = __fmul_rn(acc[j][i], shrink[i / 2]);
            }
        }
        u32 p[KEY_TILES / 2][4];
        float sum[2] = {0.0f, 0.0f};
#pragma unroll
        for (int n = 0; n < KEY_TILES; ++n) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float offset = FP8 ? 15.0f - top[h] : -top[h];
                const float p0 = exp2_fast(__fadd_rn(scores[n][2 * h], offset));
                const float p1 = exp2_fast(__fadd_rn(scores[n][2 * h + 1], offset));
                const u32 pair = FP8 ? pack_f16(p0, p1) : pack_bf16(p0, p1);
                sum[h] = __fadd_rn(sum[h], FP8 ? __fadd_rn(f16_low(pair), f16_high(pair))
                                   : __fadd_rn(bf16_low(pair), bf16_high(pair)));
                p[n / 2][n % 2 * 2 + h] = pair;
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(FULL_MASK, sum[h], 1));
            sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(FULL_MASK, sum[h], 2));
            if (PARTS > 1 && t == 0) {
                sums[part * QUERIES + query_warp * 16 + h * 8 + lane / 4] = sum[h];
            }
        }
        if (PARTS > 1) {
#pragma unroll
            for (int s = 0; s < KEY_TILES / 2; ++s) {
                p_tile[(query_warp * STEPS + part * (KEY_TILES / 2) + s) * 32 + lane] =
                    make_uint4(p[s][0], p[s][1], p[s][2], p[s][3]);
            }
        }
        wait_for_copies<1>();
        __syncthreads();                 // V; probabilities and sums
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
            for (int other = 0; other < PARTS; ++other) {
                const int place = other * QUERIES + query_warp * 16 + h * 8 + lane / 4;
                total[h] = __fadd_rn(total[h], PARTS > 1 ? sums[place] : sum[h]);
            }
        }
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            u32 operand[4];
            if (PARTS > 1) {
                const uint4 all = p_tile[(query_warp * STEPS + s) * 32 + lane];
                operand[0] = all.x, operand[1] = all.y, operand[2] = all.z, operand[3] = all.w;
            } else {
#pragma unroll
                for (int i = 0; i < 4; ++i) operand[i] = p[s % (KEY_TILES / 2)][i];
            }
            multiply_pv(acc, operand, v_tile, s, part, lane);
        }
        if (!has_next) break;
        tile_key = next_key;
        __syncthreads();                 // all have read V and the probabilities
        copy_keys<true>(v_tile, v_pages, table, block, tile_key);
        commit_copies();
    }

    const float scale = FP8 ? v_scale[block.kv] : 1.0f;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int query = block.first_query + query_warp * 16 + h * 8 + lane / 4;
        if (query >= span.y * GROUP) continue;
        const float factor = __fdiv_rn(scale, total[h]);
        u16* row = out + ((u64)(span.x + query / GROUP) * Q_HEADS + block.kv * GROUP
                          + query % GROUP) * D + part * 256;
#pragma unroll
        for (int j = 0; j < COLUMN_TILES; j += 2) {
            const float a = __fmul_rn(acc[j][2 * h], factor);
            const float b = __fmul_rn(acc[j][2 * h + 1], factor);
            const float c = __fmul_rn(acc[j + 1][2 * h], factor);
            const float d = __fmul_rn(acc[j + 1][2 * h + 1], factor);
            if (FP8) {                   // even and odd columns stand apart
                store_vector(row + j * 8 + 4 * t, make_uint2(pack_bf16(a, c), pack_bf16(b, d)));
            } else {
                *(u32*)(row + j * 8 + 2 * t) = pack_bf16(a, b);
                *(u32*)(row + j * 8 + 8 + 2 * t) = pack_bf16(c, d);
            }
        }
    }
}
