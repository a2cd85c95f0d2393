// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// What kv_append.cu does, as a part of attention_decode.cu, for one row of one sequence: each block
// norms and turns the query heads of its kv head, and the block that has the row's own key writes K
// and V to their pages and takes them from shared memory.
//
// Included after attention_tiles.cuh and head_norms.cuh. Constants: HAS_V, PAIRS.

#define JOBS (GROUP + 2)                 // a warp each: query heads, k, v
#define JOBS_PER_WARP ((JOBS + WARPS - 1) / WARPS)
#define ROW_HEADS (Q_HEADS + (HAS_V ? 2 : 1) * KV)
#define ROW_BYTES (D * ELEMENT)          // of a key

// Sines and cosines of the row's position, a pair a thread; a barrier must follow.
__device__ __forceinline__ void stage_turns(float2* table, const u64* __restrict__ turns,
                                            int position) {
    float2 turn;
    if (threadIdx.x >= PAIRS) return;
    compute_turn(turns[threadIdx.x], position, turn.x, turn.y);
    table[threadIdx.x] = turn;
}

// The norms' weights of this warp's heads, and what k and v are multiplied by on their way into
// pages; requested here whatever comes next.
__device__ __forceinline__ void load_norms(Constants (&c)[JOBS_PER_WARP],
                                           float (&factors)[JOBS_PER_WARP], const Raw& raw, int kv,
                                           int warp, int lane) {
#pragma unroll
    for (int n = 0; n < JOBS_PER_WARP; ++n) {
        const int job = warp + n * WARPS;
        factors[n] = 1.0f;
        if (FP8 && job >= GROUP && job < JOBS) {
            const float* inverse = job == GROUP ? raw.k_inverse : raw.v_inverse;
            factors[n] = __uint_as_float(load_activation_word(inverse + kv));
        }
        const float* from = (job < GROUP ? raw.q_norm : raw.k_norm) + lane * 8;
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
            const uint4 one = make_uint4(0x3F800000u, 0x3F800000u, 0x3F800000u, 0x3F800000u);
            const uint4 low = job <= GROUP ? load_activations(from + p * 256) : one;
            const uint4 high = job <= GROUP ? load_activations(from + p * 256 + 4) : one;
            const u32 bits[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
            for (int i = 0; i < 8; ++i) c[n].weight[p][i] = __uint_as_float(bits[i]);
        }
    }
}

// Eight consecutive numbers of k or v into the row's page and into shared memory.
__device__ __forceinline__ void keep_eight(u8* page_row, u8* own_row, const float* x, int column,
                                           float factor) {
    if (FP8) {
        u32 words[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            words[i] = pack_e4m3(x[4 * i] * factor, x[4 * i + 1] * factor)
                       | pack_e4m3(x[4 * i + 2] * factor, x[4 * i + 3] * factor) << 16;
        }
        const uint2 both = make_uint2(words[0], words[1]);
        store_vector(page_row + column, both);
        *(uint2*)(own_row + column) = both;
    } else {
        const uint4 all = make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]),
                                     pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
        store_vector(page_row + column * 2, all);
        *(uint4*)(own_row + column * 2) = all;
    }
}

// The query heads of the item's kv head into q_tile, as stage_q does; with `owns` also k and v into
// own_rows (2, ROW_BYTES) and into the slot of their pages. A barrier must follow. `table` is that
// of stage_turns.
__device__ __forceinline__ void stage_heads(uint4* q_tile, u8* own_rows, u8* k_pages, u8* v_pages,
                                            const Raw& raw, const float2* table,
                                            Constants (&c)[JOBS_PER_WARP],
                                            const float (&factors)[JOBS_PER_WARP], const Item& item,
                                            bool owns, u64 slot, int warp, int lane) {
    Head heads[JOBS_PER_WARP];
    const u16* row = raw.qkv + (u64)item.first_row * ROW_HEADS * D;
#pragma unroll
    for (int n = 0; n < JOBS_PER_WARP; ++n) {
        const int job = warp + n * WARPS;
        const int head = job < GROUP ? item.kv * GROUP + job
              : Q_HEADS + item.kv + (HAS_V && job > GROUP ? KV : 0);
        if (job < GROUP || (owns && job < JOBS)) heads[n] = load_head(row + head * D, lane);
    }
#pragma unroll
    for (int n = 0; n < JOBS_PER_WARP; ++n) {
        const int job = warp + n * WARPS;
        if (job >= GROUP && !(owns && job < JOBS)) continue;
        normalise(heads[n], c[n], raw.eps);
        if (job <= GROUP) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int pair = first_pair(lane) + i;
                const float2 turn = pair < PAIRS ? table[pair] : make_float2(0.0f, 1.0f);
                c[n].sine[i] = turn.x;
                c[n].cosine[i] = turn.y;
            }
            rotate(heads[n], c[n], lane);
        }
#pragma unroll
        for (int p = 0; p < PARTS; ++p) {
            const float* x = heads[n].x[p];
            const int column = p * 256 + lane * 8;
            if (job < GROUP) {
                const int place = column / (16 * PER_LOAD) * (PER_LOAD / 2)
                      + column % (4 * PER_LOAD) / 8;
                q_tile[(job / 8 * (KSTEPS / 2) + place) * WARP + job % 8 * 4
                       + column % (16 * PER_LOAD) / (4 * PER_LOAD)] = make_uint4(
                    q_operand(pack_bf16(x[0], x[1])), q_operand(pack_bf16(x[2], x[3])),
                    q_operand(pack_bf16(x[4], x[5])), q_operand(pack_bf16(x[6], x[7])));
            } else {
                const u64 at = (slot * KV + item.kv) * ROW_BYTES;
                const bool is_v = job > GROUP;
                keep_eight((is_v ? v_pages : k_pages) + at, own_rows + (is_v ? ROW_BYTES : 0), x,
                           column, factors[n]);
            }
        }
    }
}

// The row's own K and V, where this lane has them, in the place of what the pages would have given.
__device__ __forceinline__ void take_own(uint4* k_tile, u32 (*v)[4][V_WORDS], const u8* own_rows,
                                         int own_key, int key, int warp, int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        if (own_key + i * 8 != key) continue;
        const u8* from = own_rows + warp / KEY_GROUPS * (ROW_BYTES / 2) + lane % 4 * 16;
#pragma unroll
        for (int j = 0; j < K_LOADS; ++j)
            k_tile[(j * 2 + i) * WARPS * WARP + threadIdx.x] = *(const uint4*)(from + j * 64);
    }
    const u32* from = (const u32*)(own_rows + ROW_BYTES
                                   + (warp * 8 + lane / 4) * COLUMNS * ELEMENT);
    if (key / 4 % 4 == lane % 4) {
        u32 words[V_WORDS];
#pragma unroll
        for (int w = 0; w < V_WORDS; ++w) words[w] = from[w];
#pragma unroll
        for (int s = 0; s < TILE / 16; ++s) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
#pragma unroll
                for (int w = 0; w < V_WORDS; ++w)
                    v[s][i][w] = key / 16 == s && key % 4 == i ? words[w] : v[s][i][w];
            }
        }
    }
}
