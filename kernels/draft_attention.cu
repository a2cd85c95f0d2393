// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// draft_attention: softmax(q k^T) v of a DFlash block over its context in pages and over itself.
// draft_attention_combine: adds the partial results of its chunks.
//
// out        (T, Q, D) bf16, T = B * BLOCK: row i of sequence b stands at starts[b] + i
// partial    (T, Q, CHUNKS, D) f32, partial_ml (T, Q, CHUNKS, 2) f32: scratch
// qkv        (T, (Q + 2 KV) D) bf16: normed, turned and scaled q, k, and v
// k_pages, v_pages (P, S, KV, D) bf16: the context, positions below starts[b]
// page_table (B, max_pages) i32; starts (B) i32
//
// A row sees the context and the block, no key WINDOW or more before itself, and no later row of
// the block with CAUSAL.
//
// Bytes moved: 4 KV D per visible key, and the partial results. Bound by latency up to some
// thousand keys. Grid (CHUNKS, KV, B); a block takes every CHUNKS-th tile of 64 keys, the block's
// own rows being the last tile; each warp has 16 of the BLOCK * GROUP queries of the kv head. The
// context is in the pages before the draft starts, so its first tile loads before the wait.
//
// A lane takes 8 neighbouring columns of q and of k, the same of both, as two steps of 16.
//
// PRECOND: D a multiple of 16 up to 128; GROUP <= 8 and BLOCK <= 16; CHUNKS <= 32; qkv and pages
//          16-byte aligned. Dynamic shared memory: 64 * (4 D + 80) bytes.
// Constants: D, KV, GROUP, BLOCK, S, WINDOW (0: none), CAUSAL, CHUNKS.

#include "prefill_tile.cuh"

#define TILE 64
#define Q_HEADS (KV * GROUP)
#define ROW_SIZE ((Q_HEADS + 2 * KV) * D)
#define QUERIES (BLOCK * GROUP)
#define WARPS ((QUERIES + 15) / 16)
// Of a key in shared memory, so that no bank meets twice: 4 lanes read 64 bytes of a row of K,
// 8 lanes 16 bytes of a row of V each.
#define K_STRIDE (D + (D % 64 ? 0 : 32))
#define V_STRIDE (D + 8)
#define STEPS ((D + 31) / 32)            // of 32 columns
#define VECTORS (D / 8)
#define LOWEST -1e30f
#define HIDDEN -3e38f
#define LOG2_E 1.4426950408889634f

// First key of the first tile that some row of a block at `start` sees.
__device__ __forceinline__ int first_key(int start) {
    return WINDOW ? max(0, start - WINDOW + 1) / TILE * TILE : 0;
}

__device__ __forceinline__ int count_tiles(int start) {
    return (start - first_key(start) + TILE - 1) / TILE + 1;
}

// One tile's K and V; keys that no row sees as zeros: their pages may be others' by now. first: of
// the context, or `start` for the block's own rows.
__device__ __forceinline__ void load_keys(u16* k_tile, u16* v_tile, const u16* k_pages,
                                          const u16* v_pages, const int* table, const u16* qkv,
                                          int first, int start, bool own) {
    const int kv = blockIdx.y;
    for (int i = threadIdx.x; i < TILE * VECTORS; i += WARPS * WARP) {
        const int key = i / VECTORS, column = i % VECTORS * 8;
        const u16 *k = k_pages, *v = v_pages;
        bool real = false;
        if (own) {
            real = key < BLOCK;
            const u16* row = qkv + ((u64)blockIdx.z * BLOCK + (real ? key : 0)) * ROW_SIZE + column;
            k = row + (Q_HEADS + kv) * D;
            v = row + (Q_HEADS + KV + kv) * D;
        } else if (first + key < start && (!WINDOW || first + key > start - WINDOW)) {
            const int position = first + key;
            const u64 slot = (u64)table[position / S] * S + position % S;
            real = true;
            k += (slot * KV + kv) * D + column;
            v += (slot * KV + kv) * D + column;
        }
        copy_async(k_tile + key * K_STRIDE + column, k, real);
        copy_async(v_tile + key * V_STRIDE + column, v, real);
    }
    commit_copies();
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP)
draft_attention(float* __restrict__ partial, float2* __restrict__ partial_ml, const u16* qkv,
                const u16* k_pages, const u16* v_pages, const int* __restrict__ page_table,
                const int* __restrict__ starts, int max_pages) {
    extern __shared__ __align__(16) u16 shared[];
    u16 *k_tile = shared, *v_tile = shared + TILE * K_STRIDE;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int kv = blockIdx.y, sequence = blockIdx.z;
    allow_next_kernel();
    const int start = starts[sequence], first = first_key(start), tiles = count_tiles(start);
    const int* table = page_table + (u64)sequence * max_pages;
    const bool any = blockIdx.x < tiles;
    const bool early = any && blockIdx.x < tiles - 1;
    if (early) {
        load_keys(k_tile, v_tile, k_pages, v_pages, table, qkv, first + blockIdx.x * TILE, start,
                  false);
    }
    wait_for_previous_kernel();
    if (!any) return;

    // the warp's queries as A operands, zeros past the last one
    uint4 q[STEPS][2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int query = warp * 16 + h * 8 + g;
        const u16* row = qkv + ((u64)sequence * BLOCK + query / GROUP) * ROW_SIZE
                         + (kv * GROUP + query % GROUP) * D + 8 * t;
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            q[step][h] = make_uint4(0, 0, 0, 0);
            if (query < QUERIES && (D % 32 == 0 || step * 32 + 8 * t < D))
                q[step][h] = load_activations(row + step * 32);
        }
    }
    float acc[D / 8][4] = {}, top[2] = {LOWEST, LOWEST}, total[2] = {};
    for (int tile = blockIdx.x; tile < tiles; tile += CHUNKS) {
        const bool own = tile == tiles - 1;
        const int tile_key = own ? start : first + tile * TILE;
        const int end_key = own ? start + BLOCK : start;
        if (tile != blockIdx.x || !early) {
            __syncthreads();
            load_keys(k_tile, v_tile, k_pages, v_pages, table, qkv, tile_key, start, own);
        }
        wait_for_copies<0>();
        __syncthreads();
        float scores[TILE / 8][4];
#pragma unroll
        for (int n = 0; n < TILE / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) scores[n][i] = 0.0f;
            const u16* key = k_tile + (n * 8 + g) * K_STRIDE + 8 * t;
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                uint4 k = make_uint4(0, 0, 0, 0);
                if (D % 32 == 0 || step * 32 + 8 * t < D) k = *(const uint4*)(key + step * 32);
                const uint4 &a = q[step][0], &b = q[step][1];
                mma_bf16(scores[n], a.x, b.x, a.y, b.y, k.x, k.y);
                mma_bf16(scores[n], a.z, b.z, a.w, b.w, k.z, k.w);
            }
        }
        float most[2] = {top[0], top[1]};
#pragma unroll
        for (int n = 0; n < TILE / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int position = start + (warp * 16 + i / 2 * 8 + g) / GROUP;
                const int key = tile_key + n * 8 + 2 * t + i % 2;
                const bool seen = key < end_key && (!WINDOW || key > position - WINDOW)
                                  && (!CAUSAL || key <= position);
                scores[n][i] = seen ? scores[n][i] * LOG2_E : HIDDEN;
                most[i / 2] = fmaxf(most[i / 2], scores[n][i]);
            }
        }
        float sum[2] = {};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            most[h] = fmaxf(most[h], __shfl_xor_sync(FULL_MASK, most[h], 1));
            most[h] = fmaxf(most[h], __shfl_xor_sync(FULL_MASK, most[h], 2));
            const float shrink = exp2f(top[h] - most[h]);
            top[h] = most[h];
            total[h] *= shrink;
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
                acc[n][2 * h] *= shrink;
                acc[n][2 * h + 1] *= shrink;
            }
        }
#pragma unroll
        for (int s = 0; s < TILE / 16; ++s) {
            u32 p[4];
#pragma unroll
            for (int part = 0; part < 2; ++part) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float* score = scores[2 * s + part] + 2 * h;
                    const u32 pair = pack_bf16(exp2f(score[0] - top[h]), exp2f(score[1] - top[h]));
                    p[2 * part + h] = pair;
                    sum[h] += bf16_low(pair) + bf16_high(pair);
                }
            }
            const u16* value = v_tile + (s * 16 + lane % 16) * V_STRIDE + lane / 16 * 8;
#pragma unroll
            for (int n = 0; n < D / 8; n += 2) {
                u32 v[4];
                load_transposed(v, value + n * 8);
                mma_bf16(acc[n], p[0], p[1], p[2], p[3], v[0], v[1]);
                mma_bf16(acc[n + 1], p[0], p[1], p[2], p[3], v[2], v[3]);
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            sum[h] += __shfl_xor_sync(FULL_MASK, sum[h], 1);
            sum[h] += __shfl_xor_sync(FULL_MASK, sum[h], 2);
            total[h] += sum[h];
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int query = warp * 16 + h * 8 + g;
        if (query >= QUERIES) continue;
        const u64 row = (u64)sequence * BLOCK + query / GROUP;
        const u64 place = (row * Q_HEADS + kv * GROUP + query % GROUP) * CHUNKS + blockIdx.x;
#pragma unroll
        for (int n = 0; n < D / 8; ++n) {
            *(float2*)(partial + place * D + n * 8 + 2 * t) =
                make_float2(acc[n][2 * h], acc[n][2 * h + 1]);
        }
        if (t == 0) partial_ml[place] = make_float2(top[h], total[h]);
    }
}

#define AT_ONCE 8                        // chunks whose results are requested together

// Grid: one warp for each of the T Q heads.
extern "C" __global__ void __launch_bounds__(128)
draft_attention_combine(u16* __restrict__ out, const float* partial, const float2* partial_ml,
                        const int* __restrict__ starts, int num_rows) {
    const int lane = threadIdx.x % WARP, index = blockIdx.x * 4 + threadIdx.x / WARP;
    allow_next_kernel();
    wait_for_previous_kernel();
    if (index >= num_rows * Q_HEADS) return;
    const int chunks = min(CHUNKS, count_tiles(starts[index / Q_HEADS / BLOCK]));
    const u64 place = (u64)index * CHUNKS;
    float2 own = make_float2(LOWEST, 0.0f);      // of chunk `lane`
    if (lane < chunks) own = load_result(partial_ml + place + lane);
    float top = own.x;
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2)
        top = fmaxf(top, __shfl_xor_sync(FULL_MASK, top, mask));
    const float share = exp2f(own.x - top);
    const float factor = 1.0f / warp_sum(own.y * share);
    for (int column = 4 * lane; column < (D + 4 * WARP - 1) / (4 * WARP) * 4 * WARP;
         column += 4 * WARP) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int first = 0; first < chunks; first += AT_ONCE) {
            float4 part[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                part[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (first + i < chunks && column < D)
                    part[i] = load_result((const float4*)(partial + (place + first + i) * D
                                                          + column));
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; ++i) {
                const float weight = __shfl_sync(FULL_MASK, share, (first + i) % WARP);
                sum.x += part[i].x * weight, sum.y += part[i].y * weight;
                sum.z += part[i].z * weight, sum.w += part[i].w * weight;
            }
        }
        if (column < D)
            store_vector(out + (u64)index * D + column,
                         make_uint2(pack_bf16(sum.x * factor, sum.y * factor),
                                    pack_bf16(sum.z * factor, sum.w * factor)));
    }
}
