// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// out = softmax(q K^T) V over the pages of each sequence, for generated rows (decode and verify).
//
//   q, out (T, Q, D) bf16
//   k_pages, v_pages (P, S, KV, D) bf16, or e4m3 that k_scale and v_scale (KV) multiply
//   spans (B) = {first row, rows (0: none), position of the first row, unused}; 1 to 16 rows each
//   page_table (B, max_pages); entries below the window and past the last row are never read
//   partial (T, Q, max_chunks, D) float32, partial_ml (T, Q, max_chunks) {maximum, sum}: scratch
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
//   scores: warp w has keys 8w .. 8w + 7 and all of D; K goes from memory straight into the
//     registers of the B operand, with D permuted in the same way for Q, which lies in shared
//     memory in the order of the A operand
//   probabilities: shared memory, in the order of the A operand
//   output: warp w has all 64 keys and columns w D / 8 ..; V goes straight into registers, and two
//     keys of one column are put side by side by a byte permutation
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

#define WARPS 8
#define QUERIES (16 * MT)
#define MAX_GROUPS ((16 * GROUP + QUERIES - 1) / QUERIES)
#define ELEMENT (FP8 ? 1 : 2)
#define KSTEPS (D / 16)
#define K_LOADS (D * ELEMENT / 64)       // of 16 bytes, per lane
#define COLUMNS (D / WARPS / 8)          // of V, consecutive, per lane
#define V_WORDS (COLUMNS * ELEMENT / 4)  // per lane and key
#define BLOCKS_PER_SM (MT == 1 && D == 256 ? 2 : 1)
#define EARLY (FP8 ? 4 : 2)              // steps of V fetched with K, the others after the scores
#define FUSED_COLUMNS 2                  // of a lane, in the sum of the chunks by the last block
#define FUSED_AHEAD (FP8 || D == 512 ? 8 : 1)    // partial results in flight; more would spill
#define COMBINE_AHEAD 32                 // of one column, in the launch of its own
#define HIDDEN __int_as_float(0xff800000)   // minus infinity: exp gives 0
#define LOG2_E 1.4426950408889634f

struct Item {
    int sequence, first_row, num_rows, start;    // start: position of the first row
    int chunk, low_chunk, num_chunks;
    int kv, group;                               // group of QUERIES queries
};

// Work item number `index`, the last chunks of each sequence first; false past the end.
__device__ __forceinline__ bool find_item(Item& item, int index, const int4* spans,
                                          int num_spans) {
    for (int b = 0; b < num_spans; ++b) {
        const int4 span = spans[b];
        if (span.y == 0) continue;
        const int groups = (span.y * GROUP + QUERIES - 1) / QUERIES;
        const int low = chunk_of(first_visible(span.z));
        const int high = chunk_of(span.z + span.y - 1);
        const int count = (high - low + 1) * KV * groups;
        if (index < count) {
            const int head = index % (KV * groups);
            item = {b, span.x, span.y, span.z, high - index / (KV * groups), low, high - low + 1,
                            head / groups, head % groups};
            return true;
        }
        index -= count;
    }
    return false;
}

// Row of K or V of a key that lies in low .. high - 1, and the rows after it as far as one page of
// 16 or more goes: `key` is the first of 16 (V) or 8 (K) that share a page.
__device__ __forceinline__ const u8* key_row(const u8* pages, const int* table, int key, int kv) {
    return pages + (((u64)table[key / S] * S + key % S) * KV + kv) * (D * ELEMENT);
}

#define KEY_STRIDE (KV * D * ELEMENT)    // bytes from one slot of a page to the next

// K of this lane's key of the tile, where it lies in low .. high - 1; else zeros, or untouched.
__device__ __forceinline__ void load_k(u32 (*k)[4], const u8* pages, const int* table, int kv,
                                       int tile_key, int low, int high, bool clear, int warp,
                                       int lane) {
    const int key = tile_key + warp * 8 + lane / 4;
    if (key >= low && key < high) {
        const u8* row = key_row(pages, table, key, kv) + lane % 4 * 16;
#pragma unroll
        for (int j = 0; j < K_LOADS; ++j) load_once(k[j], row + j * 64);
    } else if (clear) {
#pragma unroll
        for (int j = 0; j < K_LOADS; ++j) k[j][0] = k[j][1] = k[j][2] = k[j][3] = 0;
    }
}

// V of the tile in this warp's columns: keys 16 s + 2t, + 1, + 8, + 9 for t = lane % 4, the steps
// s = FIRST .. END - 1.
template <int FIRST, int END>
__device__ __forceinline__ void load_v(u32 (*v)[4][V_WORDS], const u8* pages, const int* table,
                                       int kv, int tile_key, int low, int high, bool clear,
                                       int warp, int lane) {
#pragma unroll
    for (int s = FIRST; s < END; ++s) {
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
            const int per_load = FP8 ? 4 : 2;          // k steps that one 16-byte load of K feeds
            const int d = step / per_load * (16 * per_load) + lane % 4 * (4 * per_load)
                      + step % per_load * 4;
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
                                            const u32 (*k)[4], int lane) {
    float odd[MT][4];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[m][i] = odd[m][i] = 0.0f;
    }
#pragma unroll
    for (int step = 0; step < KSTEPS; ++step) {
        u32 b0, b1;
        if (FP8) {
            const u32 word = k[step / 4][step % 4];
            b0 = e4m3_to_f16(word & 0xffffu);
            b1 = e4m3_to_f16(word >> 16);
        } else {
            b0 = k[step / 2][step % 2 * 2];
            b1 = k[step / 2][step % 2 * 2 + 1];
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

// Column j of this lane for one step of 16 keys: the B operand {keys 2t, 2t + 1 | + 8, + 9}.
__device__ __forceinline__ void v_operand(u32* b, const u32 (*v)[V_WORDS], int j) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const u32 *even = v[h * 2], *odd = v[h * 2 + 1];
        if (FP8) {
            const u32 both = __byte_perm(even[j / 4], odd[j / 4], 0x4000 * (j % 4 / 4) + (j % 4) +
                                   ((4 + j % 4) << 4));
            b[h] = e4m3_to_f16(both & 0xffffu);
        } else {
            b[h] = __byte_perm(even[j / 2], odd[j / 2], j % 2 ? 0x7632 : 0x5410);
        }
    }
}

// out += P V in this warp's columns; out[m][j] holds column j of each lane, two lanes' columns.
__device__ __forceinline__ void multiply_pv(float (*out)[COLUMNS][4], const uint4* p_tile,
                                            const u32 (*v)[4][V_WORDS], int lane) {
#pragma unroll
    for (int s = 0; s < TILE / 16; ++s) {
        uint4 p[MT];
#pragma unroll
        for (int m = 0; m < MT; ++m) p[m] = p_tile[(m * (TILE / 16) + s) * 32 + lane];
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            u32 b[2];
            v_operand(b, v[s], j);
#pragma unroll
            for (int m = 0; m < MT; ++m) multiply(out[m][j], p[m], b[0], b[1]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP, BLOCKS_PER_SM) attention_decode(
        u16* __restrict__ out, float* partial, float2* partial_ml, u32* tickets,
        const u16* q, const u8* k_pages, const u8* v_pages,
        const float* __restrict__ k_scale, const float* __restrict__ v_scale,
        const int4* __restrict__ spans, const int* __restrict__ page_table, int fused,
        int num_spans, int max_pages, int max_chunks) {
    extern __shared__ __align__(16) u8 shared[];
    uint4* q_tile = (uint4*)shared;                          // (MT, KSTEPS, 32)
    uint4* p_tile = q_tile + MT * KSTEPS * 32;               // (MT, TILE / 16, 32)
    float* maxima = (float*)(p_tile + MT * (TILE / 16) * 32);    // (WARPS, QUERIES)
    float* sums = maxima + WARPS * QUERIES;                  // (WARPS, QUERIES)
    Item* cold = (Item*)(sums + WARPS * QUERIES);            // what only the last steps need
    u32* ticket = (u32*)(cold + 1);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    allow_next_kernel();
    bool waited = false;
    Item item;
    for (int index = blockIdx.x; find_item(item, index, spans, num_spans); index += gridDim.x) {
        const int* table = page_table + (u64)item.sequence * max_pages;
        const int low_key = first_visible(item.start), end_key = item.start + item.num_rows;
        const int stop = min(chunk_start(item.chunk + 1), end_key);
        int tile_key = chunk_start(item.chunk);
        u32 k[K_LOADS][4], v[TILE / 16][4][V_WORDS];
        const int ready = waited ? end_key : item.start;       // keys before it are in the pages
        load_k(k, k_pages, table, item.kv, tile_key, low_key, ready, true, warp, lane);
        load_v<0, EARLY>(v, v_pages, table, item.kv, tile_key, low_key, ready, true, warp, lane);
        if (!waited) {
            wait_for_previous_kernel();
            waited = true;
            load_k(k, k_pages, table, item.kv, tile_key, item.start, end_key, false, warp, lane);
            load_v<0, EARLY>(v, v_pages, table, item.kv, tile_key, item.start, end_key, false,
                             warp, lane);
        }
        stage_q(q_tile, q, item);
        if (threadIdx.x == 0) *cold = item;
        __syncthreads();

        const float to_base_2 = FP8 ? k_scale[item.kv] * LOG2_E : LOG2_E;
        float total[MT][2], top[MT][2], acc[MT][COLUMNS][4];
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
        while (true) {
            float scores[MT][4];
            multiply_qk(scores, q_tile, k, lane);
            const int next_key = tile_key + TILE;
            if (next_key < stop) {
                load_k(k, k_pages, table, item.kv, next_key, low_key, end_key, true, warp, lane);
            }
            load_v<EARLY, TILE / 16>(v, v_pages, table, item.kv, tile_key, low_key, end_key, true,
                                     warp, lane);
            // scores[m][2 h + i]: query 8 h + lane / 4 on key 2 (lane % 4) + i of the warp's
            const int key = tile_key + warp * 8 + lane % 4 * 2;
#pragma unroll
            for (int m = 0; m < MT; ++m) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int query = m * 16 + h * 8 + lane / 4;
                    const int position = item.start + (item.group * QUERIES + query) / GROUP;
                    float most = LOWEST;
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const bool seen = key + i <= position && key + i >= first_visible(position)
                              && position < end_key;
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
            multiply_pv(acc, p_tile, v, lane);
            tile_key = next_key;
            if (tile_key >= stop) break;
            load_v<0, EARLY>(v, v_pages, table, item.kv, tile_key, low_key, end_key, true, warp,
                             lane);
        }

#pragma unroll
        for (int m = 0; m < MT; ++m) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const int query = cold->group * QUERIES + m * 16 + h * 8 + lane / 4;
                if (query < cold->num_rows * GROUP) {
                    const int head = cold->kv * GROUP + query % GROUP;
                    const u64 row = cold->first_row + query / GROUP;
                    const u64 place = (row * Q_HEADS + head) * max_chunks
                                      + (cold->chunk - cold->low_chunk);
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        const int i = h * 2 + e;
                        float* to = partial + place * D
                                    + (warp * 8 + lane % 4 * 2 + e) * COLUMNS;
#pragma unroll
                        for (int j = 0; j < COLUMNS; j += 4) {
                            store_vector(to + j, make_float4(acc[m][j][i], acc[m][j + 1][i],
                                                             acc[m][j + 2][i], acc[m][j + 3][i]));
                        }
                    }
                    if (warp == 0 && lane % 4 == 0) {
                        partial_ml[place] = make_float2(top[m][h], total[m][h]);
                    }
                }
            }
        }
        __threadfence();
        __syncthreads();                 // also: all have read q_tile, p_tile and sums
        if (fused) {
            u32* counter = tickets + (cold->sequence * KV + cold->kv) * MAX_GROUPS + cold->group;
            if (threadIdx.x == 0) *ticket = atomicAdd(counter, 1u);
            __syncthreads();
            if (*ticket == cold->num_chunks - 1) {
                __threadfence();
                const int first = cold->group * QUERIES;
                const int count = min(QUERIES, cold->num_rows * GROUP - first);
                const float scale = FP8 ? v_scale[cold->kv] : 1.0f;
                const int slices = D / (32 * FUSED_COLUMNS);
                for (int i = warp; i < count * slices; i += WARPS) {
                    const int query = first + i / slices, row = query / GROUP;
                    combine_row<FUSED_COLUMNS, FUSED_AHEAD>(
                        out, partial, partial_ml, max_chunks, cold->first_row + row,
                        cold->kv * GROUP + query % GROUP, cold->start + row, cold->low_chunk,
                        i % slices, scale, lane);
                }
                if (threadIdx.x == 0) *counter = 0;
            }
            __syncthreads();         // all have read *ticket and *cold
        }
    }
    if (!waited) wait_for_previous_kernel();
}

// Grid: one warp for each 32 columns of each of the T Q query heads. Rows of no span: untouched.
extern "C" __global__ void __launch_bounds__(128, 4) attention_decode_combine(
        u16* __restrict__ out, const float* partial, const float2* partial_ml,
        const float* __restrict__ v_scale, const int4* __restrict__ spans, int num_spans,
        int num_rows, int max_chunks) {
    const int lane = threadIdx.x % 32;
    const int index = blockIdx.x * 4 + threadIdx.x / 32;
    const int slice = index % (D / 32), head = index / (D / 32) % Q_HEADS;
    const int row = index / (D / 32) / Q_HEADS;
    allow_next_kernel();
    wait_for_previous_kernel();
    if (row >= num_rows) return;
    for (int b = 0; b < num_spans; ++b) {
        const int4 span = spans[b];
        if (row < span.x || row >= span.x + span.y) continue;
        combine_row<1, COMBINE_AHEAD>(out, partial, partial_ml, max_chunks, row, head, span.z + row - span.x,
                       chunk_of(first_visible(span.z)), slice, FP8 ? v_scale[head / GROUP] : 1.0f,
                       lane);
    }
}
