// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// The experts of generated rows, in three launches:
//   moe_nvfp4_gate_up  inner[p] = gelu_tanh(bf16(G_e x)) * bf16(U_e x), pair p = (token, k),
//                      e = expert_ids[p], x = row p / CHOSEN
//   moe_nvfp4_down     results[p] = bf16(D_e inner[p])
//   moe_nvfp4_combine  out[token] = sum over k of weights[token, k] * results[token, k]
//
// x (T, H) bf16; inner (T K, I) bf16; results (T K, H) bf16; out (T, H) f32
// expert_ids (T, K) i32, -1 for rows that are padding; expert_weights (T, K) f32
// codes, scales  (E, tiles of (2 I, H), gate and up interleaved by 8 rows), (E, tiles of (H, I))
// row_scales     (E, row tiles, 2) f32
//
// Bytes moved: 27 / 16 H I for each distinct expert (its three matrices, once), and T K (2 H + 4 I)
// 2 of rows. Bound by reading the weights.
// blockIdx.x counts distinct experts in order of first appearance; each block finds its own by
// itself, so routing needs no launch to sort. An expert's rows are the columns of one matrix
// instruction (two for more than 8), so its weights are read once. gate_up: warps share the depth
// (K_WARPS * WARP_TILES tiles) and add up in their order; blockIdx.y and its stride walk the row
// tiles. down: each warp has a row tile of its own over the full depth. A row's sums never depend
// on who shares its experts, and combine adds best expert first.
//
// PRECOND: at most 16 tokens and 128 pairs; a token's expert ids differ; H and I multiples of 8.
// Constants: ENTRY (0 gate_up, 1 down, 2 combine), COLUMNS, COLUMN_TILES, PREFETCH, BLOCKS (8
// tokens or fewer: 1, else 2), CHOSEN (K), NUM_EXPERTS (E), MIN_BLOCKS; gate_up: K_WARPS,
// WARP_TILES; down: WARPS.

#if ENTRY != 2

#define MAX_PAIRS 128

struct ExpertRows {
    int expert;                  // -1: this block has none
    int count;
    int pairs[16];
};

// seen: zeroed by the block. Called by one whole warp.
__device__ __forceinline__ void find_expert(ExpertRows* found, u8* seen, const int* expert_ids,
                                            int num_pairs, int slot, int lane) {
    int ids[MAX_PAIRS / WARP];
#pragma unroll
    for (int i = 0; i < MAX_PAIRS / WARP; ++i) {
        int pair = i * WARP + lane;
        ids[i] = pair < num_pairs ? (int)load_activation_word(expert_ids + pair) : -1;
        if (ids[i] >= NUM_EXPERTS) ids[i] = -1;
    }
    int before = 0, expert = -1;
#pragma unroll
    for (int i = 0; i < MAX_PAIRS / WARP; ++i) {
        u32 same = __match_any_sync(FULL_MASK, ids[i]);
        bool first = ids[i] >= 0 && lane == __ffs(same) - 1 && !seen[ids[i]];
        __syncwarp();
        if (first) seen[ids[i]] = 1;
        __syncwarp();
        u32 firsts = __ballot_sync(FULL_MASK, first);
        int rank = before + __popc(firsts & ((1u << lane) - 1));
        u32 mine = __ballot_sync(FULL_MASK, first && rank == slot);
        if (mine) expert = __shfl_sync(FULL_MASK, ids[i], __ffs(mine) - 1);
        before += __popc(firsts);
    }
    int count = 0;
#pragma unroll
    for (int i = 0; i < MAX_PAIRS / WARP; ++i) {
        bool member = expert >= 0 && ids[i] == expert;
        u32 members = __ballot_sync(FULL_MASK, member);
        int place = count + __popc(members & ((1u << lane) - 1));
        if (member && place < 16) found->pairs[place] = i * WARP + lane;
        count += __popc(members);
    }
    if (lane == 0) {
        found->expert = expert;
        found->count = count < 16 ? count : 16;
    }
}

#endif

#if ENTRY == 0

#define AHEAD (WARP_TILES < 4 ? WARP_TILES : 4)

__device__ __forceinline__ bool in_matrix(int column_tile) {
    return K_WARPS * WARP_TILES == COLUMN_TILES || column_tile < COLUMN_TILES;
}

struct Matrix {
    const uint4* __restrict__ codes;     // of this expert
    const u32* __restrict__ scales;
    const float* __restrict__ row_scales;
};

__device__ __forceinline__ void load_slice(WeightTile (&w)[PREFETCH], const Matrix& matrix,
                                           int row_tile, int first_tile, int lane, u64 policy) {
#pragma unroll
    for (int i = 0; i < PREFETCH; ++i)
        if (in_matrix(first_tile + i))
            w[i] = load_tile(matrix.codes, matrix.scales,
                             (u64)row_tile * COLUMN_TILES + first_tile + i, lane, policy);
}

// All row tiles of one block for up to 8 * COUNT_BLOCKS rows.
template <int COUNT_BLOCKS>
__device__ __forceinline__ void gate_up(u16* __restrict__ inner, const u16* x, Matrix matrix,
                                        const ExpertRows& found,
                                        float (&partial)[K_WARPS][BLOCKS][PARTIAL_SIZE],
                                        int num_row_tiles, int lane, int warp, u64 policy) {
    int g = lane >> 2, t = lane & 3, first_tile = warp * WARP_TILES;
    int intermediate = num_row_tiles * 8;
    const u16* rows[COUNT_BLOCKS];
#pragma unroll
    for (int m = 0; m < COUNT_BLOCKS; ++m)
        rows[m] = 8 * m + g < found.count
            ? x + (u64)(found.pairs[8 * m + g] / CHOSEN) * COLUMNS + 8 * t : 0;
    WeightTile w[PREFETCH];
    load_slice(w, matrix, blockIdx.y, first_tile, lane, policy);
    for (int row_tile = blockIdx.y; row_tile < num_row_tiles; row_tile += gridDim.y) {
        int next = row_tile + gridDim.y;
        float acc[2][COUNT_BLOCKS][4] = {};
        for (int base = 0; base < WARP_TILES; base += PREFETCH) {
#pragma unroll
            for (int start = 0; start < PREFETCH; start += AHEAD) {
                ActivationTile activations[AHEAD][COUNT_BLOCKS];
#pragma unroll
                for (int i = start; i < start + AHEAD && i < PREFETCH; ++i)
                    if (base + i < WARP_TILES && in_matrix(first_tile + base + i))
                        load_activation_tile<COUNT_BLOCKS>(activations[i - start], rows, t,
                                                           first_tile + base + i, COLUMNS);
#pragma unroll
                for (int i = start; i < start + AHEAD && i < PREFETCH; ++i) {
                    int tile = base + i;
                    if (tile >= WARP_TILES) continue;
                    if (in_matrix(first_tile + tile))
                        multiply_tile<COUNT_BLOCKS>(acc, w[i], activations[i - start]);
                    bool same_row = tile + PREFETCH < WARP_TILES;
                    int column_tile = first_tile + (same_row ? tile + PREFETCH : i);
                    if ((same_row || next < num_row_tiles) && in_matrix(column_tile))
                        w[i] = load_tile(matrix.codes, matrix.scales,
                                         (u64)(same_row ? row_tile : next) * COLUMN_TILES
                                         + column_tile, lane, policy);
                }
            }
        }
#pragma unroll
        for (int m = 0; m < COUNT_BLOCKS; ++m)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                partial[warp][m][j * (WARP + 1) + lane] = acc[0][m][j] + acc[1][m][j];
        __syncthreads();
        for (int i = threadIdx.x; i < 8 * found.count; i += K_WARPS * WARP) {
            int row = i & 7, n = i >> 3;
            float gate = summed(partial, row, n) * matrix.row_scales[2 * row_tile];
            float up = summed(partial, row + 8, n) * matrix.row_scales[2 * row_tile + 1];
            float value = gelu_tanh(rounded_to_bf16(gate)) * rounded_to_bf16(up);
            inner[(u64)found.pairs[n] * intermediate + row_tile * 8 + row] = to_bf16(value);
        }
        __syncthreads();         // partial is written again for the next row tile
    }
}

extern "C" __global__ void __launch_bounds__(K_WARPS * WARP, MIN_BLOCKS)
moe_nvfp4_gate_up(u16* __restrict__ inner, const u16* x, const int* expert_ids,
                  const uint4* __restrict__ codes, const u32* __restrict__ scales,
                  const float* __restrict__ row_scales, int num_pairs, int num_row_tiles) {
    __shared__ float partial[K_WARPS][BLOCKS][PARTIAL_SIZE];
    __shared__ ExpertRows found;
    __shared__ u8 seen[NUM_EXPERTS];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    allow_next_kernel();
    u64 policy = streaming_policy();
    for (int i = threadIdx.x; i < NUM_EXPERTS; i += K_WARPS * WARP) seen[i] = 0;
    __syncthreads();
    wait_for_previous_kernel();
    if (warp == 0) find_expert(&found, seen, expert_ids, num_pairs, blockIdx.x, lane);
    __syncthreads();
    if (found.expert < 0) return;
    u64 tiles = (u64)found.expert * num_row_tiles * COLUMN_TILES;
    Matrix matrix = {codes + tiles * TILE_CODE_VECTORS, scales + tiles * TILE_SCALE_WORDS,
                     row_scales + (u64)found.expert * num_row_tiles * 2};
#if BLOCKS == 2
    if (found.count > 8) {
        gate_up<2>(inner, x, matrix, found, partial, num_row_tiles, lane, warp, policy);
        return;
    }
#endif
    gate_up<1>(inner, x, matrix, found, partial, num_row_tiles, lane, warp, policy);
}

#elif ENTRY == 1

// One row tile for up to 8 * COUNT_BLOCKS rows. w holds its first PREFETCH column tiles.
template <int COUNT_BLOCKS>
__device__ __forceinline__ void down(u16* __restrict__ results, const u16* inner,
                                     WeightTile (&w)[PREFETCH], const uint4* __restrict__ codes,
                                     const u32* __restrict__ scales,
                                     const float* __restrict__ row_scales, const ExpertRows& found,
                                     u64 row_tile_of_all, int row_tile, int num_outputs, int lane,
                                     u64 policy) {
    int g = lane >> 2, t = lane & 3;
    const u16* rows[COUNT_BLOCKS];
#pragma unroll
    for (int m = 0; m < COUNT_BLOCKS; ++m)
        rows[m] = 8 * m + g < found.count
            ? inner + (u64)found.pairs[8 * m + g] * COLUMNS + 8 * t : 0;
    float acc[2][COUNT_BLOCKS][4] = {};
    for (int base = 0; base < COLUMN_TILES; base += PREFETCH) {
#pragma unroll
        for (int i = 0; i < PREFETCH; ++i) {
            int tile = base + i;
            if (COLUMN_TILES % PREFETCH != 0 && tile >= COLUMN_TILES) continue;
            ActivationTile part[COUNT_BLOCKS];
            load_activation_tile<COUNT_BLOCKS>(part, rows, t, tile, COLUMNS);
            multiply_tile<COUNT_BLOCKS>(acc, w[i], part);
            if (tile + PREFETCH < COLUMN_TILES)
                w[i] = load_tile(codes, scales, row_tile_of_all * COLUMN_TILES + tile + PREFETCH,
                                 lane, policy);
        }
    }
#pragma unroll
    for (int m = 0; m < COUNT_BLOCKS; ++m) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            int n = 8 * m + 2 * t + (j & 1), row = row_tile * 16 + g + 8 * (j >> 1);
            float value = (acc[0][m][j] + acc[1][m][j]) * row_scales[2 * row_tile_of_all + (j >> 1)];
            if (n < found.count && row < num_outputs)
                results[(u64)found.pairs[n] * num_outputs + row] = to_bf16(value);
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP, MIN_BLOCKS)
moe_nvfp4_down(u16* __restrict__ results, const u16* inner, const int* expert_ids,
               const uint4* __restrict__ codes, const u32* __restrict__ scales,
               const float* __restrict__ row_scales, int num_pairs, int num_row_tiles,
               int num_outputs) {
    __shared__ ExpertRows found;
    __shared__ u8 seen[NUM_EXPERTS];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row_tile = blockIdx.y * WARPS + warp;
    allow_next_kernel();
    u64 policy = streaming_policy();
    for (int i = threadIdx.x; i < NUM_EXPERTS; i += WARPS * WARP) seen[i] = 0;
    __syncthreads();
    wait_for_previous_kernel();
    if (warp == 0) find_expert(&found, seen, expert_ids, num_pairs, blockIdx.x, lane);
    __syncthreads();
    if (found.expert < 0 || row_tile >= num_row_tiles) return;
    u64 row_tile_of_all = (u64)found.expert * num_row_tiles + row_tile;
    WeightTile w[PREFETCH];
#pragma unroll
    for (int i = 0; i < PREFETCH; ++i)
        w[i] = load_tile(codes, scales, row_tile_of_all * COLUMN_TILES + i, lane, policy);
#if BLOCKS == 2
    if (found.count > 8) {
        down<2>(results, inner, w, codes, scales, row_scales, found, row_tile_of_all, row_tile,
                num_outputs, lane, policy);
        return;
    }
#endif
    down<1>(results, inner, w, codes, scales, row_scales, found, row_tile_of_all, row_tile,
            num_outputs, lane, policy);
}

#else

extern "C" __global__ void __launch_bounds__(256)
moe_nvfp4_combine(float2* __restrict__ out, const u32* results, const int* expert_ids,
                  const float* expert_weights, int num_pairs_of_columns) {
    int token = blockIdx.y, column = blockIdx.x * 256 + threadIdx.x;
    allow_next_kernel();
    wait_for_previous_kernel();
    if (column >= num_pairs_of_columns) return;
    float2 sum = make_float2(0.0f, 0.0f);
    for (int k = 0; k < CHOSEN; ++k) {
        int pair = token * CHOSEN + k;
        if ((int)load_activation_word(expert_ids + pair) < 0) continue;
        float weight = __uint_as_float(load_activation_word(expert_weights + pair));
        u32 both = load_activation_word(results + (u64)pair * num_pairs_of_columns + column);
        // product and sum round apart, as in the twin
        sum.x = __fadd_rn(sum.x, __fmul_rn(weight, from_bf16((u16)both)));
        sum.y = __fadd_rn(sum.y, __fmul_rn(weight, from_bf16((u16)(both >> 16))));
    }
    out[(u64)token * num_pairs_of_columns + column] = sum;
}

#endif
