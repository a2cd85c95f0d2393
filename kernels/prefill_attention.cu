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
// walks their keys in tiles of TILE at absolute positions, ascending, with a running maximum. All
// its warps share each tile twice:
//   scores: a warp has 32 queries and TILE / KEY_PARTS keys, so that Q is read KEY_PARTS times and
//     K QUERY_WARPS / 2 times. Q lies in the order of the multiplier; a lane reads 16 bytes of a
//     key, the B operand of two steps (four of e4m3), with D permuted in the same way for Q
//   output: a warp has 64 queries (all of a smaller block) and 64 columns or more, so that a number
//     of V is read and converted once or twice a block; ldmatrix turns V; of e4m3 two neighbouring
//     columns travel as one 16-bit number
// Between them the warps exchange maxima, probabilities and what the sums so far shrink by. K and V
// come by asynchronous copies: the next K under the softmax and P V, V under Q K^T.
// e4m3 numbers become f16 exactly, and q and the probabilities (times 2^15) are f16 then, else all
// are bf16. A tile in which a row sees nothing multiplies its sums by 1 and adds exact zeros: so
// neither the borders of chunks nor a row's neighbours nor QUERY_WARPS change a bit; TILE does.
// Vectors of 16 bytes are swapped about within a row of shared memory so that eight lanes that are
// served together meet all banks.
//
// PRECOND: D is 256 or 512; S is a multiple of 16; GROUP is at most 16
// PRECOND: spans and page_table are written before the step's first launch
// PRECOND (FP8): |q| < 65,504
// PRECOND (BLOCKS): a block lies wholly among its span's rows
// PRECOND: QUERY_WARPS is 2, 4 or 8 (8: D 256); TILE is 32 or more, 128 at most
// Constants: D, GROUP, KV, S, WINDOW (0: none), FP8 (0, 1), QUERY_WARPS, TILE, BLOCKS (0, 1, 2).

#include "prefill_tile.cuh"

#define Q_HEADS (KV * GROUP)
#define WARPS (QUERY_WARPS * D / 256)
#define THREADS (WARPS * WARP)
#define QUERIES (16 * QUERY_WARPS)
#define ELEMENT (FP8 ? 1 : 2)
#define ROW_BYTES (D * ELEMENT)          // of a key
#define ROW_VECTORS (ROW_BYTES / 16)
#define STEPS (TILE / 16)
// Scores: a warp has 32 queries and a part of the tile's keys.
#define KEY_PARTS (D / 128)
#define KEY_TILES (TILE / 8 / KEY_PARTS) // of 8 keys, per warp
#define LANE_STEPS (4 / ELEMENT)         // steps of 16 columns in a lane's vector of a key
// Result: a warp has 64 queries, or all of a smaller block, and a part of the columns.
#define OUT_TILES (QUERY_WARPS < 4 ? QUERY_WARPS : 4)    // of 16 queries
#define COLUMN_TILES (32 / OUT_TILES)    // of 8 columns
#define COLUMN_PARTS (D / 8 / COLUMN_TILES)
#define HIDDEN __int_as_float(0xff800000)
#define LOWEST (-1e30f)
#define LOG2_E 1.4426950408889634f

// Places of a 16-byte vector in a row of shared memory.
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

__device__ __forceinline__ void multiply(float (&c)[4], const uint4& a, u32 b0, u32 b1) {
    if (FP8) {
        mma_f16(c, a.x, a.y, a.z, a.w, b0, b1);
    } else {
        mma_bf16(c, a.x, a.y, a.z, a.w, b0, b1);
    }
}

// Four e4m3 numbers as two pairs of f16.
__device__ __forceinline__ void four_e4m3(u32& low, u32& high, u32 word) {
#if __CUDA_ARCH__ >= 890
    asm("{ .reg .b16 l, h;\n mov.b32 {l, h}, %2;\n cvt.rn.f16x2.e4m3x2 %0, l;\n"
        "cvt.rn.f16x2.e4m3x2 %1, h;\n}" : "=r"(low), "=r"(high) : "r"(word));
#else
    low = e4m3_to_f16(word & 0xffffu), high = e4m3_to_f16(word >> 16);
#endif
}

struct Block {
    int first_row, num_rows, start;      // of the span; start: position of its first row
    int first_query, low_key, end_key;   // of this block; keys that some row sees
    bool sees_block;
    int kv;
};

__device__ __forceinline__ uint4 load_q(const u16* q, const Block& block, int query, int vector) {
    if (query >= block.num_rows * GROUP) return make_uint4(0, 0, 0, 0);
    const u64 place = (u64)(block.first_row + query / GROUP) * Q_HEADS + block.kv * GROUP
                      + query % GROUP;
    const uint4 v = load_activations(q + place * D + vector * 8);
    if (!FP8) return v;
    return make_uint4(pack_f16(bf16_low(v.x), bf16_high(v.x)),
                      pack_f16(bf16_low(v.y), bf16_high(v.y)),
                      pack_f16(bf16_low(v.z), bf16_high(v.z)),
                      pack_f16(bf16_low(v.w), bf16_high(v.w)));
}

// The queries as A operands, (QUERY_WARPS, D / 16, 32) vectors; zeros past the last.
__device__ __forceinline__ void stage_q(uint4* q_tile, const u16* q, const Block& block) {
    const int vectors = D / 8, lane_vectors = LANE_STEPS / 2;
#pragma unroll 2
    for (int i = threadIdx.x; i < QUERIES / 2 * vectors; i += THREADS) {
        const int pair = i / vectors, vector = i % vectors, g = pair % 8;
        const int query = block.first_query + pair / 8 * 16 + g;
        const uint4 low = load_q(q, block, query, vector);
        const uint4 high = load_q(q, block, query + 8, vector);
        const int t = vector / lane_vectors % 4;
        const int step = vector / (4 * lane_vectors) * LANE_STEPS + vector % lane_vectors * 2;
        uint4* to = q_tile + (pair / 8 * (D / 16) + step) * WARP + g * 4 + t;
        to[0] = make_uint4(low.x, high.x, low.y, high.y);
        to[WARP] = make_uint4(low.z, high.z, low.w, high.w);
    }
}

// Requests K or V of TILE keys from tile_key on; zeros for keys that no row of the block sees.
template <bool IS_V>
__device__ __forceinline__ void copy_keys(u8* tile, const u8* pages, const int* table,
                                          const Block& block, int tile_key) {
    const int vector = threadIdx.x % ROW_VECTORS;
    pages += block.kv * ROW_BYTES + vector * 16;
#pragma unroll (D / 64)
    for (int j = 0; j < TILE * ROW_VECTORS / THREADS; ++j) {
        const int row = (j * THREADS + threadIdx.x) / ROW_VECTORS, key = tile_key + row;
        const bool real = key >= block.low_key && key < block.end_key;
        const u8* from = pages;
        if (real) from += (u64)(u32)(table[(u32)key / S] * S + (u32)key % S) * (KV * ROW_BYTES);
        const int place = IS_V ? V_PLACE(row, vector) : K_PLACE(row, vector);
        copy_async(tile + (row * ROW_VECTORS + place) * 16, from, real);
    }
}

typedef float Scores[2][KEY_TILES][4];

// Scores of 32 queries on this warp's keys.
__device__ __forceinline__ void multiply_qk(Scores& scores, const uint4* q_tile, const u8* k_tile,
                                            int query_part, int key_part, int lane) {
    const int g = lane >> 2, t = lane & 3;
    const uint4* q = q_tile + query_part * 2 * (D / 16) * WARP + lane;
    const uint4* rows = (const uint4*)(k_tile + (key_part * KEY_TILES * 8 + g) * ROW_BYTES) + t;
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < KEY_TILES; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[m][n][i] = 0.0f;
        }
    }
#pragma unroll 1
    for (int base = 0; base < ROW_VECTORS; base += 8) {      // vectors of two times four lanes
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint4* keys = rows + base + (half ^ (g & 1)) * 4;
            const uint4* queries = q + (base / 4 + half) * LANE_STEPS * WARP;
            uint4 k[KEY_TILES];
#pragma unroll
            for (int n = 0; n < KEY_TILES; ++n) k[n] = keys[n * 8 * ROW_VECTORS];
#pragma unroll
            for (int step = 0; step < LANE_STEPS; ++step) {
                const uint4 a0 = queries[step * WARP];
                const uint4 a1 = queries[(D / 16 + step) * WARP];
#pragma unroll
                for (int n = 0; n < KEY_TILES; ++n) {
                    const u32 words[4] = {k[n].x, k[n].y, k[n].z, k[n].w};
                    u32 b0, b1;
                    if (FP8) {
                        four_e4m3(b0, b1, words[step]);
                    } else {
                        b0 = words[2 * step % 4], b1 = words[(2 * step + 1) % 4];
                    }
                    multiply(scores[0][n], a0, b0, b1);
                    multiply(scores[1][n], a1, b0, b1);
                }
            }
        }
    }
}

typedef float Result[OUT_TILES][COLUMN_TILES][4];

// acc += P V for 16 keys in this warp's queries and columns; p: their probabilities.
__device__ __forceinline__ void multiply_pv(Result& acc, const uint4* p, const u8* v_tile,
                                            int step, int column_part, int lane) {
    // lanes 0..15 point at the keys of one vector of columns, 16..31 at those of the next
    const int row = step * 16 + lane % 16, vectors = COLUMN_TILES * ELEMENT / 2;
    const uint4* keys = (const uint4*)(v_tile + row * ROW_BYTES);
    uint4 a[OUT_TILES];
#pragma unroll
    for (int m = 0; m < OUT_TILES; ++m) a[m] = p[(m * STEPS + step) * WARP];
#pragma unroll
    for (int c = 0; c < vectors; c += 2) {
        u32 v[4];
        load_transposed(v, keys + V_PLACE(lane, column_part * vectors + c + lane / 16));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const u32 low = v[2 * i], high = v[2 * i + 1];
            if (FP8) {
                // bytes: two columns of key 2 t, the same two of key 2 t + 1
                u32 even[2], odd[2];
                four_e4m3(even[0], odd[0], __byte_perm(low, 0, 0x3120));
                four_e4m3(even[1], odd[1], __byte_perm(high, 0, 0x3120));
#pragma unroll
                for (int m = 0; m < OUT_TILES; ++m) {
                    multiply(acc[m][2 * (c + i) % COLUMN_TILES], a[m], even[0], even[1]);
                    multiply(acc[m][(2 * (c + i) + 1) % COLUMN_TILES], a[m], odd[0], odd[1]);
                }
            } else {
#pragma unroll
                for (int m = 0; m < OUT_TILES; ++m) {
                    multiply(acc[m][(c + i) % COLUMN_TILES], a[m], low, high);
                }
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
    uint4* q_tile = (uint4*)shared;                          // (QUERIES, D) of 16 bits
    u8* k_tile = shared + QUERIES * D * 2;                   // (TILE, D)
    u8* v_tile = k_tile + TILE * ROW_BYTES;
    u32* p_tile = (u32*)(v_tile + TILE * ROW_BYTES);         // (QUERY_WARPS, STEPS, 32, 4)
    float* maxima = (float*)(p_tile + QUERY_WARPS * STEPS * 128);    // (KEY_PARTS, QUERIES)
    float* shrinks = maxima + KEY_PARTS * QUERIES;           // (QUERIES)
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane >> 2, t = lane & 3;
    const int query_part = warp / KEY_PARTS, key_part = warp % KEY_PARTS;
    const int out_part = warp / COLUMN_PARTS, column_part = warp % COLUMN_PARTS;
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
    const int last_row = min(span.y - 1, (block.first_query + QUERIES - 1) / GROUP);
    block.low_key = first_seen(blocks, span.x + first_row, span.z + first_row);
    block.end_key = block.sees_block ? span.z + span.y
                    : last_seen(blocks, span.x + last_row, span.z + last_row) + 1;
    // the keys that all rows see
    const int all_from = first_seen(blocks, span.x + last_row, span.z + last_row);
    const int all_to = block.sees_block ? block.end_key - 1
                       : last_seen(blocks, span.x + first_row, span.z + first_row);
    const int* table = page_table + (u64)blockIdx.z * max_pages;

    int tile_key = block.low_key / TILE * TILE;
    copy_keys<false>(k_tile, k_pages, table, block, tile_key);
    commit_copies();
    stage_q(q_tile, q, block);
    const float to_base_2 = FP8 ? k_scale[block.kv] * LOG2_E : LOG2_E;
    // this lane's queries in the scores: rows g and g + 8 of two times 16
    float top[4], total[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) top[r] = LOWEST, total[r] = 0.0f;
    Result acc;
#pragma unroll
    for (int m = 0; m < OUT_TILES; ++m) {
#pragma unroll
        for (int j = 0; j < COLUMN_TILES; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[m][j][i] = 0.0f;
        }
    }
    while (true) {
        wait_for_copies<0>();
        __syncthreads();                 // K, in the first round Q; all have read V and P
        copy_keys<true>(v_tile, v_pages, table, block, tile_key);
        commit_copies();
        Scores scores;
        multiply_qk(scores, q_tile, k_tile, query_part, key_part, lane);
        const bool all_seen = tile_key >= all_from && tile_key + TILE - 1 <= all_to;
        if (!all_seen) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                const int query = block.first_query + (query_part * 4 + r) * 8 + g;
                const int row = min(query / GROUP, span.y - 1);
                const int first = first_seen(blocks, span.x + row, span.z + row);
                const int last = block.sees_block ? block.end_key - 1
                                 : last_seen(blocks, span.x + row, span.z + row);
#pragma unroll
                for (int n = 0; n < KEY_TILES; ++n) {
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int key = tile_key + (key_part * KEY_TILES + n) * 8 + 2 * t + i;
                        float& score = scores[r / 2][n][r % 2 * 2 + i];
                        if (key < first || key > last) score = HIDDEN;
                    }
                }
            }
        }
        float most[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            most[r] = LOWEST;
#pragma unroll
            for (int n = 0; n < KEY_TILES; ++n) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& score = scores[r / 2][n][r % 2 * 2 + i];
                    score = __fmul_rn(score, to_base_2);
                    most[r] = fmaxf(most[r], score);
                }
            }
            most[r] = fmaxf(most[r], __shfl_xor_sync(FULL_MASK, most[r], 1));
            most[r] = fmaxf(most[r], __shfl_xor_sync(FULL_MASK, most[r], 2));
            if (t == 0) maxima[key_part * QUERIES + (query_part * 4 + r) * 8 + g] = most[r];
        }
        __syncthreads();                 // the maxima; and all have read K
        const int next_key = tile_key + TILE;
        const bool has_next = next_key < block.end_key;
        if (has_next) copy_keys<false>(k_tile, k_pages, table, block, next_key);
        commit_copies();
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int query = (query_part * 4 + r) * 8 + g;
#pragma unroll
            for (int part = 0; part < KEY_PARTS; ++part) {
                most[r] = fmaxf(most[r], maxima[part * QUERIES + query]);
            }
            most[r] = fmaxf(most[r], top[r]);
            const float shrink = exp2_fast(top[r] - most[r]);
            top[r] = most[r];
            total[r] = __fmul_rn(total[r], shrink);
            if (key_part == 0 && t == 0) shrinks[query] = shrink;
        }
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int n = 0; n < KEY_TILES; ++n) {
                uint2 pair;
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float offset = FP8 ? 15.0f - top[2 * m + h] : -top[2 * m + h];
                    const float p0 = exp2_fast(__fadd_rn(scores[m][n][2 * h], offset));
                    const float p1 = exp2_fast(__fadd_rn(scores[m][n][2 * h + 1], offset));
                    const u32 p = FP8 ? pack_f16(p0, p1) : pack_bf16(p0, p1);
                    const float sum = FP8 ? __fadd_rn(f16_low(p), f16_high(p))
                                      : __fadd_rn(bf16_low(p), bf16_high(p));
                    total[2 * m + h] = __fadd_rn(total[2 * m + h], sum);
                    (h ? pair.y : pair.x) = p;
                }
                const int key_tile = key_part * KEY_TILES + n;
                u32* to = p_tile + (((query_part * 2 + m) * STEPS + key_tile / 2) * WARP + lane) * 4;
                *(uint2*)(to + key_tile % 2 * 2) = pair;
            }
        }
        wait_for_copies<1>();
        __syncthreads();                 // V; probabilities and factors
        float shrink[OUT_TILES][2];
        bool changed = false;
#pragma unroll
        for (int m = 0; m < OUT_TILES; ++m) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                shrink[m][h] = shrinks[((out_part * OUT_TILES + m) * 2 + h) * 8 + g];
                changed = changed || shrink[m][h] != 1.0f;
            }
        }
        // most rounds raise no maximum any more: a factor of 1 is left out
        if (__ballot_sync(FULL_MASK, changed)) {
#pragma unroll
            for (int m = 0; m < OUT_TILES; ++m) {
#pragma unroll
                for (int j = 0; j < COLUMN_TILES; ++j) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        acc[m][j][i] = __fmul_rn(acc[m][j][i], shrink[m][i / 2]);
                    }
                }
            }
        }
        const uint4* p = (const uint4*)p_tile + out_part * OUT_TILES * STEPS * WARP + lane;
#pragma unroll 4
        for (int s = 0; s < STEPS; ++s) multiply_pv(acc, p, v_tile, s, column_part, lane);
        if (!has_next) break;
        tile_key = next_key;
    }

#pragma unroll
    for (int r = 0; r < 4; ++r) {
        float sum = __fadd_rn(total[r], __shfl_xor_sync(FULL_MASK, total[r], 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(FULL_MASK, sum, 2));
        if (t == 0) maxima[key_part * QUERIES + (query_part * 4 + r) * 8 + g] = sum;
    }
    __syncthreads();                     // the sums
    const float scale = FP8 ? v_scale[block.kv] : 1.0f;
#pragma unroll
    for (int m = 0; m < OUT_TILES; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int place = ((out_part * OUT_TILES + m) * 2 + h) * 8 + g;
            const int query = block.first_query + place;
            if (query >= span.y * GROUP) continue;
            float sum = maxima[place];
#pragma unroll
            for (int part = 1; part < KEY_PARTS; ++part) {
                sum = __fadd_rn(sum, maxima[part * QUERIES + place]);
            }
            const float factor = __fdiv_rn(scale, sum);
            u16* row = out + ((u64)(span.x + query / GROUP) * Q_HEADS + block.kv * GROUP
                              + query % GROUP) * D + column_part * COLUMN_TILES * 8;
#pragma unroll
            for (int j = 0; j < COLUMN_TILES; j += 2) {
                const float a = __fmul_rn(acc[m][j][2 * h], factor);
                const float b = __fmul_rn(acc[m][j][2 * h + 1], factor);
                const float c = __fmul_rn(acc[m][j + 1][2 * h], factor);
                const float d = __fmul_rn(acc[m][j + 1][2 * h + 1], factor);
                if (FP8) {               // even and odd columns stand apart
                    store_vector(row + j * 8 + 4 * t,
                                 make_uint2(pack_bf16(a, c), pack_bf16(b, d)));
                } else {
                    *(u32*)(row + j * 8 + 2 * t) = pack_bf16(a, b);
                    *(u32*)(row + j * 8 + 8 + 2 * t) = pack_bf16(c, d);
                }
            }
        }
    }
}
