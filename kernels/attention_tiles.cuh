// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// What attention_decode.cu does with a tile of 64 keys: K, V and the queries on their way into the
// order of the matrix instruction, the two products and the probabilities between them, and an item's
// sums. The shapes and the mapping are described there.
//
// Included after attention_combine.cuh. Constants: D, GROUP, KV, S, FP8, NT, APPEND, CLUSTER, CLAIMS.

#include "prefill_tile.cuh"

#define WARPS 8
#define KEY_GROUPS 4                     // of 16 keys; as many warps have each half of D
#define QUERIES (8 * NT)
#define MAX_GROUPS ((16 * GROUP + QUERIES - 1) / QUERIES)
#define ELEMENT (FP8 ? 1 : 2)
#define KSTEPS (D / 16)
#define PER_LOAD (FP8 ? 4 : 2)           // k steps that 16 bytes of K feed
#define K_LOADS (D * ELEMENT / 128)      // of 16 bytes, per lane and key: half a row for four lanes
#define COLUMNS (D / WARPS / 8)          // of V, consecutive, per lane
#define MTILES (COLUMNS / 2)             // of 16 columns, per warp
#define V_WORDS (COLUMNS * ELEMENT / 4)  // per lane and key
#define PAGES_OF_TILE (S % TILE == 0 ? 1 : TILE / 16)
#define HIDDEN __int_as_float(0xff800000)   // minus infinity: exp gives 0

#include "attention_items.cuh"

#define KEY_STRIDE (KV * D * ELEMENT)    // bytes from one slot of a page to the next

// The pages of a tile's keys, by 16 of them, and of the 16 that this warp multiplies with queries;
// 0 where none of the 16 lies in low .. high - 1.
struct Pages {
    int of_v[PAGES_OF_TILE], of_k;
};

__device__ __forceinline__ Pages find_pages(const int* table, int tile_key, int low, int high,
                                            int warp) {
    Pages pages;
#pragma unroll
    for (int s = 0; s < PAGES_OF_TILE; ++s) {
        const int base = tile_key + s * 16, keys = TILE / PAGES_OF_TILE;
        pages.of_v[s] = base + keys > low && base < high ? table[base / S] : 0;
    }
    if (PAGES_OF_TILE == 1) {
        pages.of_k = pages.of_v[0];
    } else {
        const int base = tile_key + warp % KEY_GROUPS * 16;
        pages.of_k = base + 16 > low && base < high ? table[base / S] : 0;
    }
    return pages;
}

// copy_async and load_once for K and V. A warp's request is 64 bytes of each of some rows, another
// warp's the rest of their lines: the L2 fetches both at once.
__device__ __forceinline__ void copy_with_line(void* to, const void* from, bool real) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(real ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void load_with_line(u32 (&to)[1], const void* from) {
    asm volatile("ld.global.L1::no_allocate.L2::128B.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
}

__device__ __forceinline__ void load_with_line(u32 (&to)[2], const void* from) {
    asm volatile("ld.global.L1::no_allocate.L2::128B.v2.u32 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1]) : "l"(from));
}

#if CLAIMS
#define COPY_ROW copy_with_line
#define LOAD_ROW load_with_line
#else
#define COPY_ROW copy_async
#define LOAD_ROW load_once
#endif

// K of one of this lane's two keys (place 0 or 1) of the tile, on its way into shared memory, where
// only this lane reads it; zeros where it is not `real`, and then its place is not read.
__device__ __forceinline__ void request_k(uint4* k_tile, const u8* pages, int page, int kv, int key,
                                          int place, bool real, int warp, int lane) {
    const u8* row = pages + (((u64)page * S + key % S) * KV + kv) * (D * ELEMENT)
                    + warp / KEY_GROUPS * (D * ELEMENT / 2) + lane % 4 * 16;
#pragma unroll
    for (int j = 0; j < K_LOADS; ++j)
        COPY_ROW(k_tile + (j * 2 + place) * WARPS * WARP + threadIdx.x, row + j * 64, real);
}

// V of the tile in this warp's columns: keys 16 s + 4 t .. + 3 for t = lane % 4; zeros, or
// untouched, where a key does not lie in low .. high - 1.
__device__ __forceinline__ void load_v(u32 (*v)[4][V_WORDS], const u8* pages, const Pages& places,
                                       int kv, int tile_key, int low, int high, bool clear,
                                       int warp, int lane) {
    const int first = tile_key + lane % 4 * 4 - low;
    const u32 width = max(high - low, 0);
    const u8* row = pages + (warp * 8 + lane / 4) * COLUMNS * ELEMENT;
#pragma unroll
    for (int s = 0; s < TILE / 16; ++s) {
        if (s == 0) {
            row += (((u64)places.of_v[0] * S + tile_key % S + lane % 4 * 4) * KV + kv)
                   * (D * ELEMENT);
        } else if (PAGES_OF_TILE == 1) {
            row += 16 * KEY_STRIDE;
        } else {
            row = pages + (((u64)places.of_v[s % PAGES_OF_TILE] * S + (tile_key + s * 16) % S
                            + lane % 4 * 4) * KV + kv) * (D * ELEMENT)
                  + (warp * 8 + lane / 4) * COLUMNS * ELEMENT;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if ((u32)(first + s * 16 + i) < width) {
                LOAD_ROW(v[s][i], row + i * KEY_STRIDE);
            } else if (clear) {
#pragma unroll
                for (int w = 0; w < V_WORDS; ++w) v[s][i][w] = 0;
            }
        }
    }
}

// Two bf16 of q as the multiplier wants them.
__device__ __forceinline__ u32 q_operand(u32 pair) {
    return FP8 ? pack_f16(bf16_low(pair), bf16_high(pair)) : pair;
}

// The item's queries in B operand order: q_tile[n][two k steps][lane], zeros past the last query.
__device__ __forceinline__ void stage_q(uint4* q_tile, const u16* q, const Item& item) {
    const int num_queries = item.num_rows * GROUP;
    constexpr int COUNT = NT * KSTEPS / 2 * WARP / (WARPS * WARP), AHEAD = 8 < COUNT ? 8 : COUNT;
#pragma unroll 1
    for (int base = 0; base < COUNT; base += AHEAD) {
        u32 words[AHEAD][4];             // requested together
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const int place = (base + i) * WARPS * WARP + threadIdx.x, lane = place % 32;
            const int step = place / 32 % (KSTEPS / 2) * 2, n = place / 32 / (KSTEPS / 2);
            const int d = step / PER_LOAD * (16 * PER_LOAD) + lane % 4 * (4 * PER_LOAD)
                      + step % PER_LOAD * 4;
            const int query = item.group * QUERIES + n * 8 + lane / 4;
#pragma unroll
            for (int w = 0; w < 4; ++w) words[i][w] = 0;
            if (query < num_queries) {
                const int head = item.kv * GROUP + query % GROUP;
                const u64 row = item.first_row + query / GROUP;
                load_once(words[i], q + (row * Q_HEADS + head) * D + d);
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            q_tile[(base + i) * WARPS * WARP + threadIdx.x] = make_uint4(
                q_operand(words[i][0]), q_operand(words[i][1]), q_operand(words[i][2]),
                q_operand(words[i][3]));
        }
    }
}

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if (FP8) {
        mma_f16(c, a[0], a[1], a[2], a[3], b0, b1);
    } else {
        mma_bf16(c, a[0], a[1], a[2], a[3], b0, b1);
    }
}

// The four e4m3 numbers of a word as f16, the lower two and the upper two.
__device__ __forceinline__ void e4m3_word_to_f16(u32& low, u32& high, u32 word) {
#if __CUDA_ARCH__ >= 890
    asm("{ .reg .b16 l, h;\n mov.b32 {l, h}, %2;\n cvt.rn.f16x2.e4m3x2 %0, l;\n"
        "cvt.rn.f16x2.e4m3x2 %1, h;\n}" : "=r"(low), "=r"(high) : "r"(word));
#else
    low = e4m3_to_f16(word & 0xffffu);
    high = e4m3_to_f16(word >> 16);
#endif
}

// Where the score of a key of the tile lies in a query's row: writers (one key, queries 2 t) and
// readers (four keys, two queries) meet no bank twice.
__device__ __forceinline__ int score_place(int query, int key) {
    return query * TILE + (key ^ ((query >> 1 & 3) << 3 ^ (query & 1) << 4));
}

// scores of this warp's 16 keys, over its half of D, into shared memory: K is the A operand, so that
// eight queries are enough for an instruction. Even and odd steps are added in two chains.
__device__ __forceinline__ void multiply_qk(float* scores, const uint4* q_tile,
                                            const uint4* k_tile, int warp, int lane) {
    float even[NT][4], odd[NT][4];
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) even[n][i] = odd[n][i] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < K_LOADS; ++j) {
        const uint4 low = k_tile[(j * 2) * WARPS * WARP + threadIdx.x];
        const uint4 high = k_tile[(j * 2 + 1) * WARPS * WARP + threadIdx.x];
        const u32 words[2][4] = {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}};
#pragma unroll
        for (int pair = 0; pair < PER_LOAD / 2; ++pair) {
            const int place = warp / KEY_GROUPS * (KSTEPS / 4) + j * (PER_LOAD / 2) + pair;
            u32 a[2][4];
#pragma unroll
            for (int step = 0; step < 2; ++step) {
#pragma unroll
                for (int key = 0; key < 2; ++key) {
                    if (FP8) {
                        e4m3_word_to_f16(a[step][key], a[step][2 + key],
                                         words[key][(pair * 2 + step) % 4]);
                    } else {
                        a[step][key] = words[key][step * 2];
                        a[step][2 + key] = words[key][step * 2 + 1];
                    }
                }
            }
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const uint4 b = q_tile[(n * (KSTEPS / 2) + place) * WARP + lane];
                multiply(even[n], a[0], b.x, b.y);
                multiply(odd[n], a[1], b.z, b.w);
            }
        }
    }
    scores += warp / KEY_GROUPS * (QUERIES * TILE);
    const int key = warp % KEY_GROUPS * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
            scores[score_place(n * 8 + lane % 4 * 2 + i % 2, key + i / 2 * 8)] =
                even[n][i] + odd[n][i];
    }
}

// A query's maximum and sum so far, in the four lanes that have its keys.
struct Sums {
    float top, total;
};

// p: the probabilities of a query tile's keys as B operands of the four steps of 16 keys; keys
// 16 s + 4 t .. + 3 of query lane / 4. first .. first + width - 1: the keys that the query sees,
// counted from the tile's first. Returns what the sums before shrink by.
__device__ __forceinline__ float probabilities(uint2 (&p)[TILE / 16], Sums& sums,
                                               const float* scores, int query, int first, int stop,
                                               float to_base_2, int lane) {
    float x[TILE / 4], most = LOWEST;
#pragma unroll
    for (int s = 0; s < TILE / 16; ++s) {
        const float* from = scores + score_place(query, s * 16 + lane % 4 * 4);
        const float4 one = *(const float4*)from, other = *(const float4*)(from + QUERIES * TILE);
        const float both[4] = {__fadd_rn(one.x, other.x), __fadd_rn(one.y, other.y),
                               __fadd_rn(one.z, other.z), __fadd_rn(one.w, other.w)};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int key = s * 16 + i;
            const bool seen = key < stop && (WINDOW == 0 || key >= first);
            x[s * 4 + i] = seen ? __fmul_rn(both[i], to_base_2) : HIDDEN;
            most = fmaxf(most, x[s * 4 + i]);
        }
    }
    most = fmaxf(most, __shfl_xor_sync(FULL_MASK, most, 1));
    most = fmaxf(most, __shfl_xor_sync(FULL_MASK, most, 2));
    most = fmaxf(most, sums.top);
    const float shrink = exp2_fast(sums.top - most), offset = FP8 ? 15.0f - most : -most;
    float sum[TILE / 16];
#pragma unroll
    for (int s = 0; s < TILE / 16; ++s) {
        float numbers[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) numbers[i] = exp2_fast(__fadd_rn(x[s * 4 + i], offset));
        u32 pairs[2];
        float sum_of_pair[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if (FP8) {
                pairs[h] = pack_f16(numbers[h * 2], numbers[h * 2 + 1]);
                sum_of_pair[h] = __fadd_rn(f16_low(pairs[h]), f16_high(pairs[h]));
            } else {
                pairs[h] = pack_bf16(numbers[h * 2], numbers[h * 2 + 1]);
                sum_of_pair[h] = __fadd_rn(bf16_low(pairs[h]), bf16_high(pairs[h]));
            }
        }
        p[s] = make_uint2(pairs[0], pairs[1]);
        sum[s] = __fadd_rn(sum_of_pair[0], sum_of_pair[1]);
    }
    float all = __fadd_rn(__fadd_rn(sum[0], sum[1]), __fadd_rn(sum[2], sum[3]));
    all = __fadd_rn(all, __shfl_xor_sync(FULL_MASK, all, 1));
    all = __fadd_rn(all, __shfl_xor_sync(FULL_MASK, all, 2));
    sums.top = most;
    sums.total = __fadd_rn(__fmul_rn(sums.total, shrink), all);
    return shrink;
}

// The A operands of 16 columns (this lane's 2 m and 2 m + 1) and 16 keys. `zero` is 0, read behind
// the barrier: it keeps the assembler from doing this, and from waiting for V, before it.
__device__ __forceinline__ void v_operand(u32 (&a)[4], const u32 (*v)[V_WORDS], int m, u32 zero) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const u32 *even = v[h * 2], *odd = v[h * 2 + 1];
        if (FP8) {
            const u32 both = __byte_perm(even[m / 2], odd[m / 2], (m % 2 ? 0x7362 : 0x5140) | zero);
            e4m3_word_to_f16(a[h * 2], a[h * 2 + 1], both);
        } else {
            a[h * 2] = __byte_perm(even[m], odd[m], 0x5410 | zero);
            a[h * 2 + 1] = __byte_perm(even[m], odd[m], 0x7632 | zero);
        }
    }
}

// out += V^T P^T in this warp's columns: out[m][n] holds columns 2 m (first two) and 2 m + 1 of
// queries 2 t and 2 t + 1.
__device__ __forceinline__ void multiply_pv(float (*out)[NT][4], const uint2 (&own)[TILE / 16],
                                            const uint2* p_tile, const u32 (*v)[4][V_WORDS],
                                            u32 zero, int lane) {
#pragma unroll
    for (int s = 0; s < TILE / 16; ++s) {
        uint2 p[NT];
#pragma unroll
        for (int n = 0; n < NT; ++n)
            p[n] = NT == 1 ? own[s] : p_tile[(n * (TILE / 16) + s) * WARP + lane];
#pragma unroll
        for (int m = 0; m < MTILES; ++m) {
            u32 a[4];
            v_operand(a, v[s], m, zero);
#pragma unroll
            for (int n = 0; n < NT; ++n) multiply(out[m][n], a, p[n].x, p[n].y);
        }
    }
}

// Before an item's first tile.
__device__ __forceinline__ void start_sums(Sums& sums, float (&acc)[MTILES][NT][4]) {
    sums = {LOWEST, 0.0f};
#pragma unroll
    for (int m = 0; m < MTILES; ++m) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[m][n][i] = 0.0f;
        }
    }
}

// An item's results, for the sum of the chunks.
__device__ __forceinline__ void store_partial(float* partial, float2* partial_ml, const Item& item,
                                              const Sums& sums, const float (&acc)[MTILES][NT][4],
                                              int num_rows, int max_chunks, int warp, int lane) {
    const int chunk = item.chunk - item.low_chunk;
#pragma unroll
    for (int n = 0; n < NT; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int query = item.group * QUERIES + n * 8 + lane % 4 * 2 + e;
            if (query < item.num_rows * GROUP) {
                const int head = item.kv * GROUP + query % GROUP;
                const u64 row = item.first_row + query / GROUP;
                float* to = partial + partial_place(chunk, num_rows, row, head) * D
                            + (warp * 8 + lane / 4) * COLUMNS;
#pragma unroll
                for (int m = 0; m < MTILES; m += 2) {
                    store_vector(to + m * 2, make_float4(acc[m][n][e], acc[m][n][2 + e],
                                                         acc[m + 1][n][e], acc[m + 1][n][2 + e]));
                }
            }
        }
    }
    const int query = item.group * QUERIES + (NT == 1 ? 0 : warp) * 8 + lane / 4;
    if (warp < NT && lane % 4 == 0 && query < item.num_rows * GROUP) {   // whose sums this warp has
        const int head = item.kv * GROUP + query % GROUP;
        const u64 row = item.first_row + query / GROUP;
        partial_ml[(row * Q_HEADS + head) * max_chunks + chunk] = make_float2(sums.top, sums.total);
    }
}
