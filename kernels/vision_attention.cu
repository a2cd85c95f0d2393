// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// out = softmax(q K^T) V for every head of one image: each patch sees every other one.
//
//   qkv (P, 3, HEADS, D) bf16, normed and turned; out (P, HEADS, D) bf16
//
// The scale is 1 (it sits in the norms).
//
// Bytes: qkv and out once, K and V again for every block, from the L2. Bound by the matrix units
// and, close behind, by shared memory.
//
// Mapping. A block takes 16 PARTS WARPS queries of one head and walks all keys in tiles of 64,
// ascending, with a running maximum; a warp has 16 queries, or PARTS times as many for every read of
// K and V, their scores and their sums in registers. The next tile's K and V come by asynchronous
// copies under the products of this one. WARPS and PARTS change no bit.
//   scores: a lane reads 8 bytes of a key, the B operand of a step of 16 columns, with D permuted
//     in the same way for Q; columns from D up to whole steps are zeros in both
//   output: ldmatrix turns V
// Rows of shared memory have a length at which the lanes that are served together meet all banks.
// Probabilities are rounded to bf16; the matrix units add them up too, as products with ones.
//
// PRECOND: D a multiple of 8, at most 128; qkv and out 16-byte aligned
// Constants: D, HEADS, WARPS, PARTS (1, 2).

#include "prefill_tile.cuh"

#define THREADS (WARPS * WARP)
#define QUERIES (16 * PARTS * WARPS)
#if __CUDA_ARCH__ >= 900
#define RESIDENT ((PARTS == 1 ? 16 : 8) / WARPS)     // blocks: 128 or 255 registers do
#else
#define RESIDENT 1                       // nothing is spilled
#endif
#define TILE 64                          // keys
#define VECTORS (D / 8)                  // of 16 bytes, in a row
#define STEPS ((D + 15) / 16)            // of 16 columns
#define COLUMN_TILES (D / 8)
#define KEY_TILES (TILE / 8)
#define K_ROW (32 * (STEPS | 1))         // bytes: an odd number of 32
#define V_ROW (16 * (VECTORS | 1))       // an odd number of 16
#define STAGE (TILE * (K_ROW + V_ROW))
#define COPY_ROWS (THREADS / VECTORS)    // of a tile, at once
#define ONES 0x3F803F80u                 // a pair of bf16: probabilities times ones are their sum
#define ROW (3 * HEADS * D)              // numbers of a patch
#define HIDDEN __int_as_float(0xff800000)
#define LOWEST (-1e30f)
#define LOG2_E 1.4426950408889634f

// Requests K and V of the tile that begins at `key`; zeros past the last patch. A thread has one
// vector of every COPY_ROWS-th row.
__device__ __forceinline__ void copy_tile(u8* stage, const u16* head, int key, int num_patches) {
    const int first = threadIdx.x / VECTORS, vector = threadIdx.x % VECTORS;
    const u16* k = head + (u64)(key + first) * ROW + HEADS * D + vector * 8;
    u8* to = stage + first * K_ROW + vector * 16;
    u8* to_v = stage + TILE * K_ROW + first * V_ROW + vector * 16;
#pragma unroll
    for (int row = 0; row < TILE; row += COPY_ROWS) {
        const bool ours = first < COPY_ROWS && row + first < TILE;
        const bool real = key + row + first < num_patches;
        const u16* from = real ? k + (u64)row * ROW : head;
        if (ours) {
            copy_async(to + row * K_ROW, from, real);
            copy_async(to_v + row * V_ROW, from + (real ? HEADS * D : 0), real);
        }
    }
    commit_copies();
}

// A lane's 4 columns of a step of a patch; zeros past D and past the last patch.
__device__ __forceinline__ uint2 load_q(const u16* head, int query, int step, int t,
                                        int num_patches) {
    const int column = step * 16 + 4 * t;
    if (query >= num_patches || column >= D) return make_uint2(0, 0);
    const u16* from = head + (u64)query * ROW + column;
    return make_uint2(load_activation_word(from), load_activation_word(from + 2));
}

// Hides the keys past the last patch, and makes what was summed up relative to the new maximum.
// `last`: keys of the tile from this lane's first one on.
__device__ __forceinline__ void rescale(float (&scores)[KEY_TILES][4], float (&top)[2],
                                        float (&acc)[COLUMN_TILES + 1][4], int last) {
    if (last < TILE) {                   // the last tile
#pragma unroll
        for (int n = 0; n < KEY_TILES; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (n * 8 + i % 2 >= last) scores[n][i] = HIDDEN;
            }
        }
    }
    float most[2] = {top[0], top[1]};
#pragma unroll
    for (int n = 0; n < KEY_TILES; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) most[i / 2] = fmaxf(most[i / 2], scores[n][i]);
    }
    float shrink[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        most[h] = fmaxf(most[h], __shfl_xor_sync(FULL_MASK, most[h], 1));
        most[h] = fmaxf(most[h], __shfl_xor_sync(FULL_MASK, most[h], 2));
        shrink[h] = exp2_fast(__fmul_rn(__fsub_rn(top[h], most[h]), LOG2_E));
        top[h] = most[h];
    }
    // most rounds raise no maximum any more: a factor of 1 is left out
    if (__ballot_sync(FULL_MASK, shrink[0] != 1.0f || shrink[1] != 1.0f)) {
#pragma unroll
        for (int j = 0; j <= COLUMN_TILES; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[j][i] = __fmul_rn(acc[j][i], shrink[i / 2]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
vision_attention(u16* __restrict__ out, const u16* qkv, int num_patches) {
    extern __shared__ __align__(16) u8 shared[];             // two stages
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane >> 2, t = lane & 3;
    const u16* head = qkv + blockIdx.y * D;
    const int first = blockIdx.x * QUERIES + warp * 16 * PARTS + g;  // of this lane's queries
    allow_next_kernel();
    if (D % 16 != 0) {                   // the columns of K that nobody copies
        for (int i = threadIdx.x; i < 2 * TILE; i += THREADS) {
            *(uint4*)(shared + i / TILE * STAGE + i % TILE * K_ROW + VECTORS * 16) =
                make_uint4(0, 0, 0, 0);
        }
    }
    wait_for_previous_kernel();
    copy_tile(shared, head, 0, num_patches);
    u32 q[PARTS][STEPS][4];
    float top[PARTS][2], acc[PARTS][COLUMN_TILES + 1][4];    // the last tile: the sums of all p
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            const int query = first + part * 16;
            const uint2 low = load_q(head, query, s, t, num_patches);
            const uint2 high = load_q(head, query + 8, s, t, num_patches);
            q[part][s][0] = low.x, q[part][s][1] = high.x;
            q[part][s][2] = low.y, q[part][s][3] = high.y;
        }
        top[part][0] = top[part][1] = LOWEST;
#pragma unroll
        for (int j = 0; j <= COLUMN_TILES; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[part][j][i] = 0.0f;
        }
    }
    for (int key = 0, stage = 0; key < num_patches; key += TILE, stage ^= 1) {
        if (key + TILE < num_patches) {
            copy_tile(shared + (stage ^ 1) * STAGE, head, key + TILE, num_patches);
            wait_for_copies<1>();
        } else {
            wait_for_copies<0>();
        }
        __syncthreads();                 // all have this tile
        const u8* k_tile = shared + stage * STAGE;
        const u8* v_tile = k_tile + TILE * K_ROW;
        float scores[PARTS][KEY_TILES][4];
#pragma unroll
        for (int n = 0; n < KEY_TILES; ++n) {
#pragma unroll
            for (int i = 0; i < 4 * PARTS; ++i) scores[i / 4][n][i % 4] = 0.0f;
#pragma unroll
            for (int s = 0; s < STEPS; ++s) {
                const uint2 k = *(const uint2*)(k_tile + (n * 8 + g) * K_ROW + s * 32 + t * 8);
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    const u32 (&a)[4] = q[part][s];
                    mma_bf16(scores[part][n], a[0], a[1], a[2], a[3], k.x, k.y);
                }
            }
        }
        const bool whole = key + TILE <= num_patches;
        const int last = num_patches - key - 2 * t;      // keys from this lane's first one on
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            rescale(scores[part], top[part], acc[part], whole ? TILE : last);
        }
#pragma unroll
        for (int s = 0; s < TILE / 16; ++s) {
            u32 p[PARTS][4];
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                const float offset[2] = {__fmul_rn(top[part][0], -LOG2_E),
                                         __fmul_rn(top[part][1], -LOG2_E)};
#pragma unroll
                for (int i = 0; i < 4; ++i) {    // rows g and g + 8 of the first 8 keys, then 8 more
                    const int h = i % 2;
                    const float* score = scores[part][2 * s + i / 2] + 2 * h;
                    p[part][i] = pack_bf16(exp2_fast(__fmaf_rn(score[0], LOG2_E, offset[h])),
                                           exp2_fast(__fmaf_rn(score[1], LOG2_E, offset[h])));
                }
                const u32 (&a)[4] = p[part];
                mma_bf16(acc[part][COLUMN_TILES], a[0], a[1], a[2], a[3], ONES, ONES);
            }
            // lanes 0..15 point at the keys of one vector of columns, 16..31 at those of the next
            const u8* row = v_tile + (s * 16 + lane % 16) * V_ROW;
#pragma unroll
            for (int c = 0; c < COLUMN_TILES; c += 2) {
                u32 m[4];
                load_transposed(m, row + min(c + lane / 16, COLUMN_TILES - 1) * 16);
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    const u32 (&a)[4] = p[part];
                    mma_bf16(acc[part][c], a[0], a[1], a[2], a[3], m[0], m[1]);
                    if (c + 1 < COLUMN_TILES) {
                        mma_bf16(acc[part][(c + 1) % COLUMN_TILES], a[0], a[1], a[2], a[3], m[2],
                                 m[3]);
                    }
                }
            }
        }
        __syncthreads();                 // all have read this tile
    }
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int query = first + part * 16 + h * 8;
            if (query >= num_patches) continue;
            const float factor = __fdiv_rn(1.0f, acc[part][COLUMN_TILES][2 * h]);
            u16* to = out + ((u64)query * HEADS + blockIdx.y) * D + 2 * t;
#pragma unroll
            for (int j = 0; j < COLUMN_TILES; ++j) {
                *(u32*)(to + j * 8) = pack_bf16(__fmul_rn(acc[part][j][2 * h], factor),
                                                __fmul_rn(acc[part][j][2 * h + 1], factor));
            }
        }
    }
}
