// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// What attention_decode.cu does with a tile of 64 keys: which item of work it belongs to, K, V and
// the queries on their way into the order of the matrix instruction, and the two products. The
// shapes and the mapping are described there.
//
// Included after attention_combine.cuh. Constants: D, GROUP, KV, S, FP8, MT.

#include "prefill_tile.cuh"

#define WARPS 8
#define QUERIES (16 * MT)
#define MAX_GROUPS ((16 * GROUP + QUERIES - 1) / QUERIES)
#define ELEMENT (FP8 ? 1 : 2)
#define KSTEPS (D / 16)
#define PER_LOAD (FP8 ? 4 : 2)           // k steps that 16 bytes of K feed
#define K_LOADS (D * ELEMENT / 64)       // of 16 bytes, per lane
#define COLUMNS (D / WARPS / 8)          // of V, consecutive, per lane
#define V_WORDS (COLUMNS * ELEMENT / 4)  // per lane and key

struct Item {
    int sequence, first_row, num_rows, start;    // start: position of the first row
    int chunk, low_chunk, num_chunks;
    int kv, group;                               // group of QUERIES queries
    int first_key, stop;                         // of its keys that some row sees
};

// Items of one sequence, and the part of them that decides which is which.
struct Items {
    int4 span;
    int groups, low, high, count;        // low, high: its first and last chunk
};

__device__ __forceinline__ Items items_of(const int4* spans, int b, int num_spans) {
    Items of = {};
    if (b < num_spans) of.span = spans[b];
    if (of.span.y > 0) {
        of.groups = (of.span.y * GROUP + QUERIES - 1) / QUERIES;
        of.low = chunk_of(first_visible(of.span.z));
        of.high = chunk_of(of.span.z + of.span.y - 1);
        of.count = (of.high - of.low + 1) * KV * of.groups;
    }
    return of;
}

// Work item number `index`, the last chunks of each sequence first; false past the end. Each lane of
// a warp looks at a sequence.
__device__ __forceinline__ bool find_item(Item& item, int index, const int4* spans,
                                          int num_spans) {
    const int lane = threadIdx.x % WARP;
    for (int base = 0; base < num_spans; base += WARP) {
        Items of = items_of(spans, base + lane, num_spans);
        int upto = of.count, owner = 0;
        if (num_spans > 1) {
#pragma unroll
            for (int step = 1; step < WARP; step *= 2) {
                const int other = __shfl_up_sync(FULL_MASK, upto, step);
                if (lane >= step) upto += other;
            }
            owner = __ffs(__ballot_sync(FULL_MASK, upto > index)) - 1;
        } else {
            upto = of.count = __shfl_sync(FULL_MASK, of.count, 0);
            if (index >= upto) owner = -1;
        }
        if (owner >= 0) {
            const int rest = index - __shfl_sync(FULL_MASK, upto - of.count, owner);
            const int groups = __shfl_sync(FULL_MASK, of.groups, owner);
            const int low = __shfl_sync(FULL_MASK, of.low, owner);
            const int high = __shfl_sync(FULL_MASK, of.high, owner);
            const int head = rest % (KV * groups);
            item = {base + owner, __shfl_sync(FULL_MASK, of.span.x, owner),
                    __shfl_sync(FULL_MASK, of.span.y, owner),
                    __shfl_sync(FULL_MASK, of.span.z, owner), high - rest / (KV * groups), low,
                    high - low + 1, head / groups, head % groups};
            item.first_key = chunk_start(item.chunk);
            item.stop = min(chunk_start(item.chunk + 1), item.start + item.num_rows);
            return true;
        }
        index -= __shfl_sync(FULL_MASK, upto, WARP - 1);
    }
    return false;
}

// Row of K or V of a key that lies in low .. high - 1, and the rows after it as far as one page of
// 16 or more goes: `key` is the first of 16 (V) or 8 (K) that share a page.
__device__ __forceinline__ const u8* key_row(const u8* pages, const int* table, int key, int kv) {
    return pages + (((u64)table[key / S] * S + key % S) * KV + kv) * (D * ELEMENT);
}

#define KEY_STRIDE (KV * D * ELEMENT)    // bytes from one slot of a page to the next

// K of this lane's key of the tile, on its way into shared memory, where only this lane reads it;
// zeros where it is not `real`, and then its place is not read.
__device__ __forceinline__ void request_k(uint4* k_tile, const u8* pages, const int* table, int kv,
                                          int key, bool real, int lane) {
    const int page = real ? table[key / S] : 0;
    const u8* row = pages + (((u64)page * S + key % S) * KV + kv) * (D * ELEMENT) + lane % 4 * 16;
#pragma unroll
    for (int j = 0; j < K_LOADS; ++j)
        copy_async(k_tile + j * WARPS * WARP + threadIdx.x, row + j * 64, real);
}

// V of the tile in this warp's columns: keys 16 s + 2t, + 1, + 8, + 9 for t = lane % 4; zeros, or
// untouched, where a key does not lie in low .. high - 1.
__device__ __forceinline__ void load_v(u32 (*v)[4][V_WORDS], const u8* pages, const int* table,
                                       int kv, int tile_key, int low, int high, bool clear,
                                       int warp, int lane) {
#pragma unroll
    for (int s = 0; s < TILE / 16; ++s) {
        const int base = tile_key + s * 16, key = base + lane % 4 * 2;
        const u8* row = pages;
        if (base + 15 >= low && base < high) {
            row = key_row(pages, table, base, kv) + lane % 4 * 2 * KEY_STRIDE
                        + (warp * 8 + lane / 4) * COLUMNS * ELEMENT;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int step = i % 2 + i / 2 * 8;
            if (key + step >= low && key + step < high) {
                load_once(v[s][i], row + step * KEY_STRIDE);
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

// The item's queries in A operand order: q_tile[m][k step][lane], zeros past the last query.
__device__ __forceinline__ void stage_q(uint4* q_tile, const u16* q, const Item& item) {
    const int num_queries = item.num_rows * GROUP;
    constexpr int TOGETHER = 4 < KSTEPS / WARPS ? 4 : KSTEPS / WARPS;    // requested at once
#pragma unroll(MT == 1 ? 1 : 2)
    for (int base = 0; base < MT * KSTEPS / WARPS; base += TOGETHER) {
        u32 half[TOGETHER][2][2];
#pragma unroll
        for (int n = 0; n < TOGETHER; ++n) {
            const int i = (base + n) * WARPS * WARP + threadIdx.x;
            const int lane = i % 32, step = i / 32 % KSTEPS, m = i / 32 / KSTEPS;
            const int d = step / PER_LOAD * (16 * PER_LOAD) + lane % 4 * (4 * PER_LOAD)
                      + step % PER_LOAD * 4;
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int query = item.group * QUERIES + m * 16 + h * 8 + lane / 4;
                half[n][h][0] = half[n][h][1] = 0;
                if (query < num_queries) {
                    const int head = item.kv * GROUP + query % GROUP;
                    const u64 row = item.first_row + query / GROUP;
                    load_once(half[n][h], q + (row * Q_HEADS + head) * D + d);
                }
            }
        }
#pragma unroll
        for (int n = 0; n < TOGETHER; ++n) {
            q_tile[(base + n) * WARPS * WARP + threadIdx.x] = make_uint4(
                q_operand(half[n][0][0]), q_operand(half[n][1][0]), q_operand(half[n][0][1]),
                q_operand(half[n][1][1]));
        }
    }
}

__device__ __forceinline__ void multiply(float (&c)[4], uint4 a, u32 b0, u32 b1) {
    if (FP8) {
        mma_f16(c, a.x, a.y, a.z, a.w, b0, b1);
    } else {
        mma_bf16(c, a.x, a.y, a.z, a.w, b0, b1);
    }
}

// scores[m] += Q_m K^T for this warp's 8 keys; even and odd steps are added in two chains.
__device__ __forceinline__ void multiply_qk(float (*scores)[4], const uint4* q_tile,
                                            const uint4* k_tile, int lane) {
    float odd[MT][4];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[m][i] = odd[m][i] = 0.0f;
    }
#pragma unroll
    for (int step = 0; step < KSTEPS; ++step) {
        const uint4 vector = k_tile[step / PER_LOAD * WARPS * WARP + threadIdx.x];
        const u32 words[4] = {vector.x, vector.y, vector.z, vector.w};
        u32 b0, b1;
        if (FP8) {
            b0 = e4m3_to_f16(words[step % 4] & 0xffffu);
            b1 = e4m3_to_f16(words[step % 4] >> 16);
        } else {
            b0 = words[step % 2 * 2];
            b1 = words[step % 2 * 2 + 1];
        }
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            const uint4 a = q_tile[(m * KSTEPS + step) * 32 + lane];
            multiply(step % 2 ? odd[m] : scores[m], a, b0, b1);
        }
    }
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[m][i] += odd[m][i];
    }
}

// Column j of this lane for one step of 16 keys: the B operand {keys 2t, 2t + 1 | + 8, + 9}. `zero`
// is 0, read behind the barrier: it keeps the assembler from doing this, and from waiting for V,
// before it.
__device__ __forceinline__ void v_operand(u32* b, const u32 (*v)[V_WORDS], int j, u32 zero) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const u32 *even = v[h * 2], *odd = v[h * 2 + 1];
        if (FP8) {
            const u32 both = __byte_perm(even[j / 4], odd[j / 4],
                                         (j % 4 + ((4 + j % 4) << 4)) | zero);
            b[h] = e4m3_to_f16(both & 0xffffu);
        } else {
            b[h] = __byte_perm(even[j / 2], odd[j / 2], (j % 2 ? 0x7632 : 0x5410) | zero);
        }
    }
}

// out += P V in this warp's columns; out[m][j] holds column j of each lane, two lanes' columns.
__device__ __forceinline__ void multiply_pv(float (*out)[COLUMNS][4], const uint4* p_tile,
                                            const u32 (*v)[4][V_WORDS], u32 zero, int lane) {
#pragma unroll
    for (int s = 0; s < TILE / 16; ++s) {
        uint4 p[MT];
#pragma unroll
        for (int m = 0; m < MT; ++m) p[m] = p_tile[(m * (TILE / 16) + s) * 32 + lane];
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            u32 b[2];
            v_operand(b, v[s], j, zero);
#pragma unroll
            for (int m = 0; m < MT; ++m) multiply(out[m][j], p[m], b[0], b[1]);
        }
    }
}
