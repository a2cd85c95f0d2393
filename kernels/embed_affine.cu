// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// embed_affine: hidden[t] = bf16(w[token_ids[t]] * scale), w the tied table in MLX affine codes,
// in the fragment order in which the head reads it: no second copy of the table.
//
// hidden (T, H) f32; token_ids (T) i32, -1 for padding rows, which become zeros
// words, scales  of (V, H): affine_tile.cuh
// scale: sqrt(H) rounded to bf16
//
// Bytes moved: T H (BITS / 8 + 4 / GROUP + 4), in sectors of 32. Bound by the latency of a gather.
// One block per row, 8 numbers per thread. w = scale q + bias is rounded to f32 once, as in the
// twin.
//
// PRECOND: H a multiple of GROUP and at most 8,192; hidden 16-byte aligned; ids below V.
// Constants: BITS, GROUP, H.

#include "affine_tile.cuh"

#define THREADS ((H / 8 + WARP - 1) / WARP * WARP)
#define COLUMN_TILES ((H + TILE_COLUMNS - 1) / TILE_COLUMNS)
#define SCALE_TILES ((COLUMN_TILES + TILES_PER_SCALE - 1) / TILES_PER_SCALE)
#define VECTOR (LOW_BITS < 4 ? LOW_BITS : 4)             // words that a lane loads at once

extern "C" __global__ void __launch_bounds__(THREADS)
embed_affine(float* __restrict__ hidden, const int* token_ids, const u32* __restrict__ words,
             const u32* __restrict__ scales, float scale) {
    const int column = threadIdx.x * 8;
    allow_next_kernel();
    wait_for_previous_kernel();
    if (column >= H) return;
    const int token = (int)load_activation_word(token_ids + blockIdx.x);
    float x[8] = {};
    if (token >= 0) {
        const int column_tile = column / TILE_COLUMNS, h = column / 32 % 2, t = column / 8 % 4;
        const int g = token % 8, upper = token / 8 % 2, lane = 4 * g + t;
        const u64 row_tile = token / TILE_ROWS;
        const u32* tile = words + (row_tile * COLUMN_TILES + column_tile) * TILE_WORDS;
        const u32 pair = scales[(row_tile * SCALE_TILES + column_tile / TILES_PER_SCALE)
                                * TILE_SCALES + (g * TILE_GROUPS + h % TILE_GROUPS) * 2 + upper];
        const float step = bf16_low(pair) * __uint_as_float((u32)(127 - SHIFTED(upper)) << 23);
        const float bias = bf16_high(pair);
#pragma unroll
        for (int i = 0; i < 4; ++i) {    // columns 2 i and 2 i + 1
            const int p = 8 * h + i / 2 * 4 + i % 2 * 2 + upper, word = p / LOW_PAIRS;
            u32 codes = tile[word / VECTOR * VECTOR * WARP + lane * VECTOR + word % VECTOR]
                >> (p % LOW_PAIRS * LOW_BITS);
            codes &= ((1 << LOW_BITS) - 1) * 0x10001u;
#if HIGH_BITS
            const u32 high = tile[WARP * LOW_BITS + lane * HIGH_BITS + p / HIGH_PAIRS]
                >> (p % HIGH_PAIRS * HIGH_BITS);
            codes |= (high & ((1 << HIGH_BITS) - 1) * 0x10001u) << LOW_BITS;
#endif
            x[2 * i] = __fmaf_rn(step, (float)(codes & 0xFFFF), bias);
            x[2 * i + 1] = __fmaf_rn(step, (float)(codes >> 16), bias);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) x[i] = rounded_to_bf16(x[i] * scale);
    }
    float4* to = (float4*)(hidden + (u64)blockIdx.x * H + column);
    to[0] = make_float4(x[0], x[1], x[2], x[3]);
    to[1] = make_float4(x[4], x[5], x[6], x[7]);
}
