// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// out = x W^T for prompt rows.
//   prefill_gemm       W in NVFP4, fragment order; with GEGLU gelu_tanh(bf16(x G^T)) * bf16(x U^T)
//   prefill_experts    the same for rows that are sorted by expert (prefill_sort.cu)
//   prefill_gemm_bf16  W in bf16 as the checkpoint stores it
//
// out        (T, N) bf16, with GEGLU (T, I); of the experts one row for each pair
// x          (T, M) bf16; experts: row pair / divisor
// codes, scales, row_scales  as in gemm_nvfp4.cu: weights are put in order once for both
// w          (N, M) bf16
// order      (T K) i32: pairs by expert; tiles {expert, first place in order, rows (0: none), 0}
//
// Bytes moved: N M 9/16 (2 N M) of weights for each tile of tokens, T (N + M) 2 of rows, most of
// it from the L2. Bound by the matrix units.
// One block does 16 ROW_TILES ROW_WARPS weight rows for WARP_TOKENS TOKEN_WARPS tokens over all of
// M. Weights go from memory into the registers of the A operand, AHEAD column tiles less a half
// ahead, and are decoded there, once for WARP_TOKENS tokens; few tokens leave little to do in the
// time of a read, so that small tiles are bound by it and want AHEAD above 1. Activations go through STAGES of shared memory,
// 64 columns each, by asynchronous copies. A lane reads the B operands of two steps as 16 bytes;
// vectors of odd rows have their halves swapped, so that eight lanes meet all banks.
// A sum runs over M in one accumulator, in the order of the column tiles: neither the number of
// rows nor a row's place nor the size of the tiles changes a bit.
//
// PRECOND: M and N multiples of 8; x, w and out 16-byte aligned
// PRECOND: shared memory of max(STAGES TOKENS 128, 8 WARP_TOKENS PITCH) bytes
// Constants: ENTRY (0 prefill_gemm, 1 prefill_experts, 2 prefill_gemm_bf16), WARP_TOKENS (a
// multiple of 16), TOKEN_WARPS, ROW_TILES, STAGES, AHEAD, GEGLU, MIN_BLOCKS.

#include "prefill_tile.cuh"

#define WARPS 8
#define ROW_WARPS (WARPS / TOKEN_WARPS)
#define TOKENS (WARP_TOKENS * TOKEN_WARPS)
#define NB (WARP_TOKENS / 8)
#define COPIES ((TOKENS + 31) / 32)      // rows of which a thread copies 16 bytes a stage
#define STAGE_BYTES (TOKENS * TILE_COLUMNS * 2)
#define TILE_OUTPUTS (GEGLU ? 8 : 16)
#define WARP_OUTPUTS (ROW_TILES * TILE_OUTPUTS)
#define PITCH (WARP_OUTPUTS * 2 + 16)    // of a token's results in shared memory

#if ENTRY == 2

// Rows g and g + 8 of ROW_TILES tiles: where their column 8 t stands, null past the last row.
struct Source {
    const u16 *low[ROW_TILES], *high[ROW_TILES];
    int columns;
};

struct Weights {
    uint4 low[ROW_TILES][2], high[ROW_TILES][2];
};

__device__ __forceinline__ void load_tiles(Weights& w, const Source& from, int column_tile,
                                           int lane) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int column = column_tile * TILE_COLUMNS + 32 * h;
            const bool inside = column + 8 * (lane & 3) < from.columns;
            w.low[r][h] = w.high[r][h] = make_uint4(0, 0, 0, 0);
            if (from.low[r] && inside) w.low[r][h] = __ldg((const uint4*)(from.low[r] + column));
            if (from.high[r] && inside) w.high[r][h] = __ldg((const uint4*)(from.high[r] + column));
        }
    }
}

__device__ __forceinline__ void operands(u32 (&a)[ROW_TILES][8], const Weights& w, int h) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
        const uint4 low = w.low[r][h], high = w.high[r][h];
        a[r][0] = low.x, a[r][1] = high.x, a[r][2] = low.y, a[r][3] = high.y;
        a[r][4] = low.z, a[r][5] = high.z, a[r][6] = low.w, a[r][7] = high.w;
    }
}

#else

struct Source {
    const uint4* codes;                  // of this warp's first row tile, this lane's
    const u32* scales;
    int column_tiles, num_row_tiles;     // row tiles that are left
};

struct Weights {
    WeightTile tiles[ROW_TILES];
};

__device__ __forceinline__ void load_tiles(Weights& w, const Source& from, int column_tile,
                                           int lane) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
        w.tiles[r].codes = make_uint4(0, 0, 0, 0);
        w.tiles[r].scales = 0;
        if (r >= from.num_row_tiles) continue;
        const u32 tile = r * from.column_tiles + column_tile;
        w.tiles[r].codes = __ldg(from.codes + tile * TILE_CODE_VECTORS);
        w.tiles[r].scales = __ldg(from.scales + tile * TILE_SCALE_WORDS);
    }
}

__device__ __forceinline__ void operands(u32 (&a)[ROW_TILES][8], const Weights& w, int h) {
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
        const WeightTile& tile = w.tiles[r];
        const u32 scales = decode_scales(tile.scales, h);
        decode_codes(a[r], h ? tile.codes.z : tile.codes.x, h ? tile.codes.w : tile.codes.y);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            a[r][i] = i % 2 ? scaled_by_high(a[r][i], scales) : scaled_by_low(a[r][i], scales);
        }
    }
}

#endif

// Where a thread's COPIES rows of x begin, in 16 bytes; ABSENT: there is no such row.
typedef u32 Rows[COPIES];
#define ABSENT 0xFFFFFFFFu

__device__ __forceinline__ void copy_stage(u8* stage, const Rows& rows, const u16* x,
                                           int column_tile, int columns) {
    const int vector = threadIdx.x % 8, first = threadIdx.x / 8;
    const int column = column_tile * TILE_COLUMNS + vector * 8;
#pragma unroll
    for (int j = 0; j < COPIES; ++j) {
        const int row = first + 32 * j;
        if (TOKENS < 32 && row >= TOKENS) break;
        const bool real = rows[j] != ABSENT && column < columns;
        copy_async(stage + (row * 8 + (vector ^ (row & 1) << 2)) * 16,
                   real ? x + (u64)rows[j] * 8 + column : x, real);
    }
}

typedef float Sums[ROW_TILES][NB][4];

// One column tile; the weights of `next` are requested when those of this one are decoded.
__device__ __forceinline__ void multiply_stage(Sums& acc, const u8* stage, Weights& w,
                                               const Source& source, int next, bool has_next,
                                               int token_warp, int lane) {
    const int g = lane >> 2, t = lane & 3;
    const uint4* rows = (const uint4*)stage + (token_warp * WARP_TOKENS + g) * 8;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        u32 a[ROW_TILES][8];
        operands(a, w, h);
        if (h == 1 && has_next) load_tiles(w, source, next, lane);
#pragma unroll
        for (int m = 0; m < NB; m += 2) {
            const uint4 b[2] = {rows[m * 64 + ((4 * h + t) ^ (g & 1) << 2)],
                                rows[m * 64 + 64 + ((4 * h + t) ^ (g & 1) << 2)]};
#pragma unroll
            for (int step = 0; step < 2; ++step) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
#pragma unroll
                    for (int r = 0; r < ROW_TILES; ++r) {
                        const u32* part = a[r] + 4 * step;
                        mma_bf16(acc[r][m + i], part[0], part[1], part[2], part[3],
                                 step ? b[i].z : b[i].x, step ? b[i].w : b[i].y);
                    }
                }
            }
        }
    }
}

typedef Weights Prefetched[AHEAD];

// The first column tiles.
__device__ __forceinline__ void load_first(Prefetched& w, const Source& source, int columns,
                                           int lane) {
#pragma unroll
    for (int k = 0; k < AHEAD; ++k) {
        if (k == 0 || k * TILE_COLUMNS < columns) load_tiles(w[k], source, k, lane);
    }
}

// All of M; `w` holds the first column tiles.
__device__ __forceinline__ void multiply_all(Sums& acc, u8* shared, Prefetched& w,
                                             const Source& source, const Rows& rows,
                                             const u16* x, int columns, int token_warp,
                                             int lane) {
    const int column_tiles = (columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < column_tiles) copy_stage(shared + s * STAGE_BYTES, rows, x, s, columns);
        commit_copies();
    }
    int stage = 0;
    for (int first = 0; first < column_tiles; first += AHEAD) {
#pragma unroll
        for (int k = 0; k < AHEAD; ++k) {
            const int tile = first + k;
            if (k && tile >= column_tiles) break;
            wait_for_copies<STAGES - 2>();
            __syncthreads();             // and all have read the stage that is filled next
            const int ahead = tile + STAGES - 1, free = stage == 0 ? STAGES - 1 : stage - 1;
            if (ahead < column_tiles) {
                copy_stage(shared + free * STAGE_BYTES, rows, x, ahead, columns);
            }
            commit_copies();
            multiply_stage(acc, shared + stage * STAGE_BYTES, w[k], source, tile + AHEAD,
                           tile + AHEAD < column_tiles, token_warp, lane);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
    }
    __syncthreads();
}

// This warp's results, by token, into its part of shared memory.
__device__ __forceinline__ void stage_results(u8* own, const Sums& acc,
                                              const float* __restrict__ row_scales,
                                              int num_row_tiles, int lane) {
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
        float low = 1.0f, high = 1.0f;
        if (row_scales && r < num_row_tiles) {
            low = row_scales[2 * r];
            high = row_scales[2 * r + 1];
        }
#pragma unroll
        for (int m = 0; m < NB; ++m) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                u16* to = (u16*)(own + (8 * m + 2 * t + i) * PITCH) + r * TILE_OUTPUTS + g;
                const float first = acc[r][m][i] * low, second = acc[r][m][2 + i] * high;
#if GEGLU
                to[0] = to_bf16(gelu_tanh(rounded_to_bf16(first)) * rounded_to_bf16(second));
#else
                to[0] = to_bf16(first);
                to[8] = to_bf16(second);
#endif
            }
        }
    }
    __syncwarp();
}

#define VECTORS (WARP_OUTPUTS / 8)       // of a token's results of one warp

#if ENTRY == 0

extern "C" __global__ void __launch_bounds__(WARPS * WARP, MIN_BLOCKS)
prefill_gemm(u16* __restrict__ out, const u16* x, const uint4* __restrict__ codes,
             const u32* __restrict__ scales, const float* __restrict__ row_scales, int num_tokens,
             int num_row_tiles, int num_outputs, int columns) {
    extern __shared__ __align__(16) u8 shared[];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int token_warp = warp % TOKEN_WARPS, first_token = blockIdx.y * TOKENS;
    const int row_tile = (blockIdx.x * ROW_WARPS + warp / TOKEN_WARPS) * ROW_TILES;
    const int column_tiles = (columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const u64 tile = (u64)row_tile * column_tiles;
    const Source source = {codes + tile * TILE_CODE_VECTORS + lane,
                           scales + tile * TILE_SCALE_WORDS + (lane >> 1), column_tiles,
                           num_row_tiles - row_tile};
    allow_next_kernel();
    Prefetched w;
    load_first(w, source, columns, lane);
    wait_for_previous_kernel();
    Rows rows;
#pragma unroll
    for (int j = 0; j < COPIES; ++j) {
        const int token = first_token + threadIdx.x / 8 + 32 * j;
        rows[j] = token < num_tokens ? token * (columns / 8) : ABSENT;
    }
    Sums acc = {};
    multiply_all(acc, shared, w, source, rows, x, columns, token_warp, lane);
    u8* own = shared + warp * WARP_TOKENS * PITCH;
    stage_results(own, acc, row_scales + 2 * row_tile, num_row_tiles - row_tile, lane);
    for (int i = lane; i < WARP_TOKENS * VECTORS; i += WARP) {
        const int row = i / VECTORS, token = first_token + token_warp * WARP_TOKENS + row;
        const int column = row_tile * TILE_OUTPUTS + i % VECTORS * 8;
        if (token >= num_tokens || column >= num_outputs) continue;
        store_vector(out + (u64)token * num_outputs + column,
                     *(const uint4*)(own + row * PITCH + i % VECTORS * 16));
    }
}

#elif ENTRY == 1

extern "C" __global__ void __launch_bounds__(WARPS * WARP, MIN_BLOCKS)
prefill_experts(u16* __restrict__ out, const u16* x, const int* order, const int4* tiles,
                const uint4* __restrict__ codes, const u32* __restrict__ scales,
                const float* __restrict__ row_scales, int divisor, int num_row_tiles,
                int num_outputs, int columns) {
    extern __shared__ __align__(16) u8 shared[];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int token_warp = warp % TOKEN_WARPS;
    allow_next_kernel();
    wait_for_previous_kernel();
    const uint4 item = load_activations(tiles + blockIdx.y);
    const int num_rows = (int)item.z;
    if (num_rows == 0) return;
    order += item.y;
    const int row_tile = (blockIdx.x * ROW_WARPS + warp / TOKEN_WARPS) * ROW_TILES;
    const int column_tiles = (columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const u64 all_row_tile = (u64)item.x * num_row_tiles + row_tile;
    const u64 tile = all_row_tile * column_tiles;
    const Source source = {codes + tile * TILE_CODE_VECTORS + lane,
                           scales + tile * TILE_SCALE_WORDS + (lane >> 1), column_tiles,
                           num_row_tiles - row_tile};
    Prefetched w;
    load_first(w, source, columns, lane);
    Rows rows;
#pragma unroll
    for (int j = 0; j < COPIES; ++j) {
        const int place = threadIdx.x / 8 + 32 * j;
        rows[j] = ABSENT;
        if (place < num_rows) {
            rows[j] = (int)load_activation_word(order + place) / divisor * (columns / 8);
        }
    }
    Sums acc = {};
    multiply_all(acc, shared, w, source, rows, x, columns, token_warp, lane);
    u8* own = shared + warp * WARP_TOKENS * PITCH;
    stage_results(own, acc, row_scales + 2 * all_row_tile, num_row_tiles - row_tile, lane);
    for (int i = lane; i < WARP_TOKENS * VECTORS; i += WARP) {
        const int row = i / VECTORS, place = token_warp * WARP_TOKENS + row;
        const int column = row_tile * TILE_OUTPUTS + i % VECTORS * 8;
        if (place >= num_rows || column >= num_outputs) continue;
        const u64 pair = load_activation_word(order + place);
        store_vector(out + pair * num_outputs + column,
                     *(const uint4*)(own + row * PITCH + i % VECTORS * 16));
    }
}

#else

extern "C" __global__ void __launch_bounds__(WARPS * WARP, MIN_BLOCKS)
prefill_gemm_bf16(u16* __restrict__ out, const u16* x, const u16* __restrict__ weight,
                  int num_tokens, int num_outputs, int columns) {
    extern __shared__ __align__(16) u8 shared[];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int token_warp = warp % TOKEN_WARPS, first_token = blockIdx.y * TOKENS;
    const int row_tile = (blockIdx.x * ROW_WARPS + warp / TOKEN_WARPS) * ROW_TILES;
    Source source;
    source.columns = columns;
#pragma unroll
    for (int r = 0; r < ROW_TILES; ++r) {
        const int row = (row_tile + r) * TILE_ROWS + lane / 4;
        const u16* from = weight + (u64)row * columns + 8 * (lane & 3);
        source.low[r] = row < num_outputs ? from : 0;
        source.high[r] = row + 8 < num_outputs ? from + (u64)8 * columns : 0;
    }
    allow_next_kernel();
    Prefetched w;
    load_first(w, source, columns, lane);
    wait_for_previous_kernel();
    Rows rows;
#pragma unroll
    for (int j = 0; j < COPIES; ++j) {
        const int token = first_token + threadIdx.x / 8 + 32 * j;
        rows[j] = token < num_tokens ? token * (columns / 8) : ABSENT;
    }
    Sums acc = {};
    multiply_all(acc, shared, w, source, rows, x, columns, token_warp, lane);
    u8* own = shared + warp * WARP_TOKENS * PITCH;
    stage_results(own, acc, 0, 0, lane);
    for (int i = lane; i < WARP_TOKENS * VECTORS; i += WARP) {
        const int row = i / VECTORS, token = first_token + token_warp * WARP_TOKENS + row;
        const int column = row_tile * TILE_ROWS + i % VECTORS * 8;
        if (token >= num_tokens || column >= num_outputs) continue;
        store_vector(out + (u64)token * num_outputs + column,
                     *(const uint4*)(own + row * PITCH + i % VECTORS * 16));
    }
}

#endif
