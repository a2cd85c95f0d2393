// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// attention_decode of one row of one sequence in a window, in one launch: a cluster of blocks for a
// kv head. The bits are those of attention_decode.cu.
//
//   q, out (1, Q, D) bf16
//   k_pages, v_pages (P, S, KV, D) bf16, or e4m3 that k_scale and v_scale (KV) multiply
//   spans (1) = {first row, rows (0: none), position, unused}; page_table (1, max_pages)
//
// Bytes: K and V of the visible keys once, 2 KV D each per key; q and out. Bound by a chain of
// latencies behind the launch before: q, its scores, an exchange of them, probabilities, the output,
// an exchange between blocks. So what stands in front of the wait is all that needs no q: pages, K and
// V as operands in registers, masks, sizes; and no loop and next to no branch stands behind it, since
// each instruction there runs once, and is fetched and waited for.
//
// Mapping. Chunks of 64 keys as in attention_chunks.cuh, SLOTS of them a block, CLUSTER SLOTS = RING
// in all. A window of RING chunks lies in RING + 1 of them where it does not begin at a border; then
// the first and the last have 64 visible keys together, at places of which each serves once, and share
// a slot: its keys are those of the last chunk, behind the row's own those of the first, and two more
// columns of the matrix instruction have the first one's probabilities.
// 8 warps; scores: warps w and w + 4 have keys 16w .. 16w + 15, half of D each. Probabilities: a lane
// has four keys of one query, in every warp anew; as operands they come out of other lanes. Output:
// warp w has columns 32w .., and sends them to the block that adds them, which counts the bytes.
//
// PRECOND: sm_90 and up; D is 256, GROUP 2; S is a multiple of 16; WINDOW is a multiple of 64 and at
//          most 64 RING
// PRECOND: spans, page_table and the keys before the row's own are written before the step's first
//          launch, which does not overlap the one before it
// PRECOND (FP8): |q| < 65,504
// Constants: D, GROUP, KV, S, WINDOW, FP8, CLUSTER (8, 16), SLOTS, MIN_BLOCKS

#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ < 900       // compiled, but never launched
#undef CLUSTER
#define CLUSTER 1
#endif

#define CHUNK 64
#define NT 1
#define APPEND 0
#define RING (CLUSTER * SLOTS)
#define MOST_CHUNKS (RING + 1)
#define OWN_COLUMNS (D / CLUSTER)        // of a block, in the sum of the chunks
#define RANKS_PER_WARP (CLUSTER / 8)

#include "cluster.cuh"
#include "attention_chunks.cuh"
#include "attention_combine.cuh"
#include "attention_tiles.cuh"

#if CLUSTER > 1                          // declared for attention_decode.cu: there is one item here
__device__ __forceinline__ bool find_item(Item&, int, const int4*, int) { return false; }
#endif

#define LOG2_E 1.4426950408889634f
#define HALF_STEPS (KSTEPS / 2)          // of 16 columns, in half of D

typedef u32 KeyOperands[HALF_STEPS][4];
typedef u32 ValueOperands[TILE / 16][MTILES][4];

// A slot's chunk, if it has one; with `shared` the chunk RING before it, too, behind the row's key.
struct Slot {
    int chunk;
    bool real, shared;
};

// Words of keys g (0) and g + 8 (1) as operands, in both halves of each step of 16 columns.
__device__ __forceinline__ void key_operands(KeyOperands& a, const u32 (&words)[K_LOADS][4],
                                             int key) {
#pragma unroll
    for (int j = 0; j < K_LOADS; ++j) {
#pragma unroll
        for (int step = 0; step < PER_LOAD; ++step) {
            u32(&to)[4] = a[j * PER_LOAD + step];
            if (FP8) {
                e4m3_word_to_f16(to[key], to[2 + key], words[j][step % 4]);
            } else {
                to[key] = words[j][step * 2 % 4];
                to[2 + key] = words[j][step * 2 % 4 + 1];
            }
        }
    }
}

// Where this lane's part of a key's K begins.
__device__ __forceinline__ const u8* key_row(const u8* pages, int page, int kv, int key, int warp,
                                             int lane) {
    return pages + (((u64)page * S + key % S) * KV + kv) * (D * ELEMENT)
           + warp / KEY_GROUPS * (D * ELEMENT / 2) + lane % 4 * 16;
}

// Floats in the order of integers.
__device__ __forceinline__ u32 ordered(float x) {
    const u32 bits = __float_as_uint(x);
    return bits ^ ((u32)((int)bits >> 31) | 0x80000000u);
}

__device__ __forceinline__ float from_ordered(u32 key) {
    return __uint_as_float(key ^ ((u32)((int)~key >> 31) | 0x80000000u));
}

// Numbers of this lane's query: lanes 16 and more have the second one.
__device__ __forceinline__ float most_of_query(float x, int lane) {
    const u32 key = ordered(x);
    const u32 low = __reduce_max_sync(FULL_MASK, lane < 16 ? key : 0);
    const u32 high = __reduce_max_sync(FULL_MASK, lane < 16 ? 0 : key);
    return from_ordered(lane < 16 ? low : high);
}

// The sum over a query's keys, in the order of attention_tiles.cuh's probabilities.
__device__ __forceinline__ float sum_of_query(const u32 (&pairs)[2]) {
    float sums[2];
#pragma unroll
    for (int h = 0; h < 2; ++h)
        sums[h] = FP8 ? __fadd_rn(f16_low(pairs[h]), f16_high(pairs[h]))
                      : __fadd_rn(bf16_low(pairs[h]), bf16_high(pairs[h]));
    float sum = __fadd_rn(sums[0], sums[1]);
    sum = __fadd_rn(sum, __shfl_xor_sync(FULL_MASK, sum, 4));
    sum = __fadd_rn(sum, __shfl_xor_sync(FULL_MASK, sum, 8));
    sum = __fadd_rn(sum, __shfl_xor_sync(FULL_MASK, sum, 1));
    return __fadd_rn(sum, __shfl_xor_sync(FULL_MASK, sum, 2));
}

__device__ __forceinline__ void pack_probabilities(u32 (&pairs)[2], const float (&x)[4],
                                                   float offset, float other_offset, u32 others) {
    float p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
        p[i] = exp2_fast(__fadd_rn(x[i], others >> i & 1 ? other_offset : offset));
#pragma unroll
    for (int h = 0; h < 2; ++h)
        pairs[h] = FP8 ? pack_f16(p[2 * h], p[2 * h + 1]) : pack_bf16(p[2 * h], p[2 * h + 1]);
}

// What blocks send to the one whose columns of D they are: by chunks from the lowest on.
struct Results {
    float parts[MOST_CHUNKS][2][OWN_COLUMNS];
    float2 mls[MOST_CHUNKS][2];          // maximum and sum
};

extern "C" __global__ void __launch_bounds__(WARPS * WARP, MIN_BLOCKS) BLOCKS_OF_CLUSTER
attention_window(
        u16* __restrict__ out, const u16* q, const u8* k_pages, const u8* v_pages,
        const float* __restrict__ k_scale, const float* __restrict__ v_scale,
        const int4* __restrict__ spans, const int* __restrict__ page_table) {
    __shared__ __align__(16) uint4 q_tile[KSTEPS / 2 * 8];       // (place, query, lane % 4)
    __shared__ __align__(16) float scores[SLOTS][2][2][TILE];    // (half of D, query, key)
    __shared__ __align__(16) Results results;
    __shared__ u64 mail;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int kv = blockIdx.x / CLUSTER, rank = blockIdx.x % CLUSTER;
    const uint4 words = load_activations(spans);
    const int first_row = words.x, position = words.z, rows = (int)words.y;
    const float to_base_2 = FP8 ? __fmul_rn(__uint_as_float(load_activation_word(k_scale + kv)),
                                            LOG2_E) : LOG2_E;
    const float scale = FP8 ? __uint_as_float(load_activation_word(v_scale + kv)) : 1.0f;
    const int low_key = first_visible(position);
    const int low = chunk_of(low_key), high = chunk_of(position);
    const int count = rows > 0 ? high - low + 1 : 0;
    if (threadIdx.x == 0) open_mail(&mail, count * (2 * OWN_COLUMNS * 4 + 16));
    enter_cluster();

    Slot slots[SLOTS];
    KeyOperands k[SLOTS];
    u32 v_words[SLOTS][TILE / 16][4][V_WORDS];
    u32 k_words[SLOTS][2][K_LOADS][4];
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
        const int index = i * CLUSTER + rank;
        Slot& slot = slots[i];
        slot = {high - index, index < count, index == 0 && count > RING};
        const int end_key = slot.real ? position : 0, tile_key = slot.chunk * TILE;
        const Pages places = find_pages(page_table, tile_key, low_key, end_key, warp);
#pragma unroll
        for (int key = 0; key < 2; ++key) {
            const int at = tile_key + warp % KEY_GROUPS * 16 + g + key * 8;
            const u8* from = key_row(k_pages, places.of_k, kv, at, warp, lane);
#pragma unroll
            for (int j = 0; j < K_LOADS; ++j) {
#pragma unroll
                for (int w = 0; w < 4; ++w) k_words[i][key][j][w] = 0;
                if (at >= low_key && at < end_key) load_once(k_words[i][key][j], from + j * 64);
            }
        }
        load_v(v_words[i], v_pages, places, kv, tile_key, low_key, end_key, true, warp, lane);
        if (i == 0 && slot.shared) {     // no key behind the row's own has been read
            const int other_key = tile_key - RING * TILE;
            const Pages others = find_pages(page_table, other_key, low_key, other_key + TILE,
                                            warp);
#pragma unroll
            for (int key = 0; key < 2; ++key) {
                const int at = other_key + warp % KEY_GROUPS * 16 + g + key * 8;
                const u8* from = key_row(k_pages, others.of_k, kv, at, warp, lane);
#pragma unroll
                for (int j = 0; j < K_LOADS; ++j)
                    if (at >= low_key) load_once(k_words[i][key][j], from + j * 64);
            }
            load_v(v_words[i], v_pages, others, kv, other_key, low_key, other_key + TILE, false,
                   warp, lane);
        }
    }
    // the row's own key, which the launch before writes: its place in the first block's first slot
    const int own = position % TILE, own_s = own / 16, own_t = own % 16 / 4;
    const bool owns = rank == 0 && count > 0;
    const bool owns_k = owns && warp % KEY_GROUPS == own_s && g == own % 8;
    const bool owns_v = owns && t == own_t;
    const int own_page = owns ? page_table[position / S] : 0;
    const u8* own_k = key_row(k_pages, own_page, kv, position, warp, lane);
    const u8* own_v = v_pages + (((u64)own_page * S + position % S) * KV + kv) * (D * ELEMENT)
                      + (warp * 8 + g) * COLUMNS * ELEMENT;
    const bool brings_q = threadIdx.x < GROUP * D / 8;
    const int q_column = threadIdx.x % (D / 8) * 8, q_head = threadIdx.x / (D / 8);
    const u16* from_q = q + ((u64)first_row * Q_HEADS + kv * GROUP + q_head) * D + q_column;
    const int place_of_q = (q_column / (16 * PER_LOAD) * (PER_LOAD / 2)
                            + q_column % (4 * PER_LOAD) / 8) * 8 + q_head * 4
                           + q_column % (16 * PER_LOAD) / (4 * PER_LOAD);
    // chunks that are not there have weight 0
    float* parts = &results.parts[0][0][0];
    for (int i = count * 2 * OWN_COLUMNS + threadIdx.x; i < MOST_CHUNKS * 2 * OWN_COLUMNS;
         i += WARPS * WARP) parts[i] = 0.0f;
    // of this lane's keys, in the probabilities: those of the other chunk, and 0 or minus infinity
    float bias[SLOTS][4];
    u32 others = 0;
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const int key = slots[i].chunk * TILE + lane % 16 * 4 + n;
            bias[i][n] = slots[i].shared || (key >= low_key && key <= position) ? 0.0f : HIDDEN;
            if (i == 0 && key > position) others |= 1u << n;
        }
    }
    ValueOperands v[SLOTS];
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
        key_operands(k[i], k_words[i][0], 0);
        key_operands(k[i], k_words[i][1], 1);
#pragma unroll
        for (int s = 0; s < TILE / 16; ++s) {
#pragma unroll
            for (int m = 0; m < MTILES; ++m) v_operand(v[i][s][m], v_words[i][s], m, 0);
        }
    }
    wait_for_cluster();                  // all are there, and may be sent to
    // not at the start: what the next launch requests then stands in front of this one's pages, and
    // 12 layers of the 12B take 5 us more (NVFP4), 9 (affine codes)
    allow_next_kernel();
    wait_for_previous_kernel();
    if (count == 0) return;

    // nothing else stands in front of these: operands are made while they are under way
    u32 pairs_of_q[4], own_words[K_LOADS][4], own_values[V_WORDS];
    if (brings_q) load_once(pairs_of_q, from_q);
    if (owns_k) {
#pragma unroll
        for (int j = 0; j < K_LOADS; ++j) load_once(own_words[j], own_k + j * 64);
    }
    if (owns_v) load_once(own_values, own_v);
    if (brings_q)
        q_tile[place_of_q] = make_uint4(q_operand(pairs_of_q[0]), q_operand(pairs_of_q[1]),
                                        q_operand(pairs_of_q[2]), q_operand(pairs_of_q[3]));
    if (owns_k) {
        if (own % 16 < 8) {
            key_operands(k[0], own_words, 0);
        } else {
            key_operands(k[0], own_words, 1);
        }
    }
    if (owns_v) {
#pragma unroll
        for (int m = 0; m < MTILES; ++m) {
            u32 fresh[2];                // columns 2 m and 2 m + 1 of the key, twice each
            if (FP8) {
                e4m3_word_to_f16(fresh[0], fresh[1],
                                 __byte_perm(own_values[m / 2], 0, m % 2 ? 0x3322 : 0x1100));
            } else {
                fresh[0] = __byte_perm(own_values[m], 0, 0x1010);
                fresh[1] = __byte_perm(own_values[m], 0, 0x3232);
            }
#pragma unroll
            for (int s = 0; s < TILE / 16; ++s) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    u32& pair = v[0][s][m][i];
                    if (s == own_s && i / 2 == own % 4 / 2)
                        pair = __byte_perm(pair, fresh[i % 2], own % 2 ? 0x5410 : 0x3254);
                }
            }
        }
    }
    __syncthreads();

    const uint4* own_q = q_tile + warp / KEY_GROUPS * (KSTEPS / 4 * 8) + g % 2 * 4 + t;
    float even[SLOTS][4] = {}, odd[SLOTS][4] = {};
#pragma unroll
    for (int place = 0; place < HALF_STEPS / 2; ++place) {
        const uint4 b = own_q[place * 8];
#pragma unroll
        for (int i = 0; i < SLOTS; ++i) {
            multiply(even[i], k[i][place * 2], b.x, b.y);
            multiply(odd[i], k[i][place * 2 + 1], b.z, b.w);
        }
    }
    if (t == 0) {
#pragma unroll
        for (int i = 0; i < SLOTS; ++i) {
#pragma unroll
            for (int c = 0; c < 4; ++c)
                scores[i][warp / KEY_GROUPS][c % 2][warp % KEY_GROUPS * 16 + g + c / 2 * 8] =
                    even[i][c] + odd[i][c];
        }
    }
    __syncthreads();

    const int query = lane / 16, from_lane = g % 2 * 16 + t;
    float acc[SLOTS][MTILES][4], tops[SLOTS], totals[SLOTS], other_top = LOWEST, other_total = 0.0f;
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
        const float4 one = *(const float4*)&scores[i][0][query][lane % 16 * 4];
        const float4 two = *(const float4*)&scores[i][1][query][lane % 16 * 4];
        const float sums[4] = {__fadd_rn(one.x, two.x), __fadd_rn(one.y, two.y),
                               __fadd_rn(one.z, two.z), __fadd_rn(one.w, two.w)};
        float x[4], most = LOWEST;
#pragma unroll
        for (int n = 0; n < 4; ++n) x[n] = __fmaf_rn(sums[n], to_base_2, bias[i][n]);
        u32 pairs[2], p[TILE / 16][2];
        if (i == 0 && slots[i].shared) {
            u32 parts_of_both[2][2];
            float other = LOWEST;
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                if (others >> n & 1) other = fmaxf(other, x[n]);
                else most = fmaxf(most, x[n]);
            }
            tops[i] = most_of_query(most, lane);
            other_top = most_of_query(other, lane);
            pack_probabilities(pairs, x, (FP8 ? 15.0f : 0.0f) - tops[i],
                               (FP8 ? 15.0f : 0.0f) - other_top, others);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const u32 mask = (others >> 2 * h & 1 ? 0xFFFFu : 0)
                                 | (others >> 2 * h & 2 ? 0xFFFF0000u : 0);
                parts_of_both[0][h] = pairs[h] & ~mask;
                parts_of_both[1][h] = pairs[h] & mask;
            }
#pragma unroll
            for (int s = 0; s < TILE / 16; ++s) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const u32 later = __shfl_sync(FULL_MASK, parts_of_both[0][h],
                                                  from_lane + 4 * s);
                    const u32 first = __shfl_sync(FULL_MASK, parts_of_both[1][h],
                                                  from_lane + 4 * s);
                    p[s][h] = g & 2 ? first : later;
                }
            }
            totals[i] = sum_of_query(parts_of_both[0]);
            other_total = sum_of_query(parts_of_both[1]);
        } else {
#pragma unroll
            for (int n = 0; n < 4; ++n) most = fmaxf(most, x[n]);
            tops[i] = most_of_query(most, lane);
            pack_probabilities(pairs, x, (FP8 ? 15.0f : 0.0f) - tops[i], 0.0f, 0);
#pragma unroll
            for (int s = 0; s < TILE / 16; ++s) {
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    p[s][h] = __shfl_sync(FULL_MASK, pairs[h], from_lane + 4 * s);
            }
            totals[i] = sum_of_query(pairs);
        }
#pragma unroll
        for (int m = 0; m < MTILES; ++m) {
#pragma unroll
            for (int n = 0; n < 4; ++n) acc[i][m][n] = 0.0f;
#pragma unroll
            for (int s = 0; s < TILE / 16; ++s) multiply(acc[i][m], v[i][s][m], p[s][0], p[s][1]);
        }
    }

    const int column = warp * (D / WARPS) + g * COLUMNS, to_rank = column / OWN_COLUMNS;
    const PeerAddress to = address_in_peer(&results.parts[0][0][0], to_rank);
    const PeerAddress their_mail = address_in_peer((float*)&mail, to_rank);
    // of the maxima and sums: lane % 16 is the rank, then those of the other chunk
    const int ml_rank = warp * RANKS_PER_WARP + lane % 16 % RANKS_PER_WARP;
    const PeerAddress mls = address_in_peer((float*)&results.mls[0][0], ml_rank);
    const PeerAddress ml_mail = address_in_peer((float*)&mail, ml_rank);
#pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
        const bool both = i == 0 && slots[i].shared;
        const int chunk = slots[i].chunk - low;
        if (slots[i].real && (t == 0 || (both && t == 1))) {
#pragma unroll
            for (int e = 0; e < 2; ++e)
                send_to_peer(to, ((t == 0 ? chunk : 0) * 2 + e) * OWN_COLUMNS
                             + column % OWN_COLUMNS,
                             make_float4(acc[i][0][e], acc[i][0][2 + e], acc[i][1][e],
                                         acc[i][1][2 + e]), their_mail);
        }
        const bool later = lane % 16 < RANKS_PER_WARP;
        if (slots[i].real && lane % 16 < (both ? 2 : 1) * RANKS_PER_WARP)
            send_to_peer(mls, ((later ? chunk : 0) * 2 + query) * 2,
                         make_float2(later ? tops[i] : other_top,
                                     later ? totals[i] : other_total), ml_mail);
    }
    if (warp >= 2) return;

    wait_for_mail(&mail);                // warp q adds the chunks of query q, in ascending order
    const float2 ml = lane < count ? results.mls[lane][warp] : make_float2(LOWEST, 0.0f);
    const float top = from_ordered(__reduce_max_sync(FULL_MASK, ordered(ml.x)));
    const float weight = exp2_fast(ml.x - top), total = __fmul_rn(weight, ml.y);
    float sum = 0.0f, norm = 0.0f;
#pragma unroll
    for (int c = 0; c < MOST_CHUNKS; ++c) {
        if (c % 4 == 0 && c >= count) break;
        norm = __fadd_rn(norm, __shfl_sync(FULL_MASK, total, c));
        sum = fmaf(__shfl_sync(FULL_MASK, weight, c),
                   results.parts[c][warp][lane % OWN_COLUMNS], sum);
    }
    if (lane < OWN_COLUMNS)
        out[((u64)first_row * Q_HEADS + kv * GROUP + warp) * D + rank * OWN_COLUMNS + lane] =
            to_bf16(sum * (scale / norm));
}
