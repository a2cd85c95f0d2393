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
// Each block first lists the distinct experts and their tokens in shared memory (a bit a token),
// so routing needs no launch to sort. moe_nvfp4_down must come right behind moe_nvfp4_gate_up. An
// item is one row tile of one distinct expert; a grid that just fills the device walks the items,
// with the next item's weights requested as the present one's are used up. The rows of an expert
// are the columns of one matrix instruction (of two for more than 8), so its weights are read
// once. gate_up: an item is a block's, the warps share its depth (K_WARPS * WARP_TILES tiles) and
// add up in their order. down: an item is a warp's, over the full depth. A row's sums never
// depend on who shares its experts or on the grid; combine adds best expert first.
//
// With DENSE the launches do a layer's dense MLP too, whose matrices have H and DENSE * I columns:
//   gate_up  dense_inner = gelu_tanh(bf16(G x')) * bf16(U x'), x' (T, H) bf16
//   down     dense_parts[:, j] = D[:, j I ..] dense_inner[:, j I ..], j < DENSE; (T, DENSE, H) f32,
//            to be added in order and rounded by who reads them
// Its items come first: gate_up's need no routing, so their weights are requested before the wait,
// and while they are multiplied those of the first experts are on their way.
//
// PRECOND: at most 16 tokens and 128 pairs; a token's expert ids differ; H and I multiples of 8.
// PRECOND (DENSE): I a multiple of 64
// PRECOND: PREFETCH a multiple of ACTIVATIONS, or all tiles of a warp.
// Constants: ENTRY (0 gate_up, 1 down, 2 combine), COLUMNS, COLUMN_TILES, PREFETCH, BLOCKS (8
// tokens or fewer: 1, else 2), CHOSEN (K), NUM_EXPERTS (E), MIN_BLOCKS, ACTIVATIONS (tiles of them
// in flight), DENSE (0: no dense MLP); gate_up: K_WARPS, WARP_TILES; down: WARPS.

#define MAX_TOKENS 16
#define MAX_PAIRS 128

#if ENTRY != 2

struct Routing {
    u32 tokens[NUM_EXPERTS];     // bit t: token t goes to this expert
    u8 choice[NUM_EXPERTS][MAX_TOKENS];   // as its k-th, where the bit is set
    u16 hit[MAX_PAIRS];          // the distinct experts, ascending
    int num_hit;
};

// Called by the whole block before anything depends on the kernel before.
__device__ __forceinline__ void clear_routing(Routing& routing, int num_threads) {
    for (int e = threadIdx.x; e < NUM_EXPERTS; e += num_threads) routing.tokens[e] = 0;
    __syncthreads();
}

__device__ __forceinline__ void read_routing(Routing& routing, const int* expert_ids,
                                             int num_pairs, int num_threads) {
    for (int pair = threadIdx.x; pair < num_pairs; pair += num_threads) {
        int expert = (int)load_result((const u32*)expert_ids + pair), token = pair / CHOSEN;
        if (expert < 0 || expert >= NUM_EXPERTS) continue;
        atomicOr(&routing.tokens[expert], 1u << token);
        routing.choice[expert][token] = (u8)(pair % CHOSEN);
    }
    __syncthreads();
    if (threadIdx.x < WARP) {
        int lane = threadIdx.x, count = 0;
        for (int first = 0; first < NUM_EXPERTS; first += WARP) {
            int expert = first + lane;
            bool hit = expert < NUM_EXPERTS && routing.tokens[expert] != 0;
            u32 hits = __ballot_sync(FULL_MASK, hit);
            if (hit) routing.hit[count + __popc(hits & ((1u << lane) - 1))] = (u16)expert;
            count += __popc(hits);
        }
        if (lane == 0) routing.num_hit = count;
    }
    __syncthreads();
}

// The pair of an expert's n-th token, or -1.
__device__ __forceinline__ int pair_of(const Routing& routing, int expert, int n) {
    u32 tokens = routing.tokens[expert];
    for (int i = 0; i < n; ++i) tokens &= tokens - 1;
    if (tokens == 0) return -1;
    int token = __ffs(tokens) - 1;
    return token * CHOSEN + routing.choice[expert][token];
}

struct Matrices {
    const uint4* __restrict__ codes;
    const u32* __restrict__ scales;
    const float* __restrict__ row_scales;
};

// Where an item's weights start, and the scales of its row tile.
struct Source {
    const uint4* codes;
    const u32* scales;
    const u32* row_scales;
};

// `tile` and `row_tile` count from the start of all matrices.
__device__ __forceinline__ Source source_at(const Matrices& of, u64 tile, u64 row_tile) {
    return {of.codes + tile * TILE_CODE_VECTORS, of.scales + tile * TILE_SCALE_WORDS,
            (const u32*)of.row_scales + 2 * row_tile};
}

// What the items of a launch are: num_dense of the dense MLP, then those of the experts.
struct Work {
    Matrices experts, dense;
    int num_row_tiles;           // of one expert
    int num_dense, dense_row_tiles, num_tokens;
};

__device__ __forceinline__ bool is_dense(const Work& work, int item) {
    return DENSE > 0 && item < work.num_dense;
}

#endif

#if ENTRY == 0

#define THREADS (K_WARPS * WARP)

__device__ __forceinline__ bool in_matrix(int column_tile) {
    return K_WARPS * WARP_TILES == COLUMN_TILES || column_tile < COLUMN_TILES;
}

__device__ __forceinline__ Source source_of(const Work& work, const Routing& routing, int item) {
    if (is_dense(work, item)) return source_at(work.dense, (u64)item * COLUMN_TILES, item);
    item -= work.num_dense;
    u64 row_tile = (u64)routing.hit[item / work.num_row_tiles] * work.num_row_tiles
                   + item % work.num_row_tiles;
    return source_at(work.experts, row_tile * COLUMN_TILES, row_tile);
}

// One row tile for the up to 8 * NB rows at `rows`; leaves w with the first tiles of `next`.
template <int NB>
__device__ __forceinline__ void multiply_item(float (&partial)[BLOCKS][PARTIAL_SIZE],
                                              WeightTile (&w)[PREFETCH],
                                              const u16* const (&rows)[NB], const Source& now,
                                              const Source& next, bool has_next, int first_tile,
                                              int lane, u64 policy) {
    const int t = lane & 3;
    constexpr int AHEAD = NB == 1 ? ACTIVATIONS : 1;
    ActivationTile x_tile[AHEAD][NB];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
        if (i < WARP_TILES && in_matrix(first_tile + i))
            load_activation_tile<NB>(x_tile[i], rows, t, first_tile + i, COLUMNS);
    float acc[2][NB][4] = {};
    for (int base = 0; base < WARP_TILES; base += PREFETCH) {
#pragma unroll
        for (int i = 0; i < PREFETCH; ++i) {
            int tile = base + i, ahead = tile + AHEAD;
            if (tile >= WARP_TILES) continue;
            if (in_matrix(first_tile + tile)) multiply_tile<NB>(acc, w[i], x_tile[i % AHEAD]);
            if (ahead < WARP_TILES && in_matrix(first_tile + ahead))
                load_activation_tile<NB>(x_tile[i % AHEAD], rows, t, first_tile + ahead, COLUMNS);
            bool same_row = tile + PREFETCH < WARP_TILES;
            const Source& from = same_row ? now : next;
            int column_tile = first_tile + (same_row ? tile + PREFETCH : i);
            if ((same_row || has_next) && in_matrix(column_tile))
                w[i] = load_tile(from.codes, from.scales, column_tile, lane, policy);
        }
    }
#pragma unroll
    for (int m = 0; m < NB; ++m)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            partial[m][j * (WARP + 1) + lane] = acc[0][m][j] + acc[1][m][j];
}

// The rows of an item that this lane reads: of the tokens, or of an expert's.
template <int NB>
__device__ __forceinline__ void find_rows(const u16* (&rows)[NB], const u16* x, const u16* dense_x,
                                          const Work& work, const Routing& routing, int expert,
                                          int lane) {
#pragma unroll
    for (int m = 0; m < NB; ++m) {
        int n = 8 * m + (lane >> 2), offset = 8 * (lane & 3);
        if (expert < 0) {
            rows[m] = n < work.num_tokens ? dense_x + (u64)n * COLUMNS + offset : 0;
        } else {
            int pair = pair_of(routing, expert, n);
            rows[m] = pair < 0 ? 0 : x + (u64)(pair / CHOSEN) * COLUMNS + offset;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
moe_nvfp4_gate_up(u16* __restrict__ inner, u16* __restrict__ dense_inner, const u16* x,
                  const u16* dense_x, const int* expert_ids, const uint4* __restrict__ codes,
                  const u32* __restrict__ scales, const float* __restrict__ row_scales,
                  const uint4* __restrict__ dense_codes, const u32* __restrict__ dense_scales,
                  const float* __restrict__ dense_row_scales, int num_pairs, int num_row_tiles,
                  int dense_row_tiles) {
    // of two items: while some threads finish one, others begin the next
    __shared__ float partial[2][K_WARPS][BLOCKS][PARTIAL_SIZE];
    __shared__ float tile_scales[2][2];
    __shared__ Routing routing;
    int buffer = 0, item = blockIdx.x;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first_tile = warp * WARP_TILES;
    const Work work = {{codes, scales, row_scales}, {dense_codes, dense_scales, dense_row_scales},
                       num_row_tiles, DENSE > 0 ? dense_row_tiles : 0, dense_row_tiles,
                       num_pairs / CHOSEN};
    u64 policy = streaming_policy();
    Source now = {};
    WeightTile w[PREFETCH];
    if (is_dense(work, item)) {
        now = source_of(work, routing, item);
#pragma unroll
        for (int i = 0; i < PREFETCH; ++i)
            if (in_matrix(first_tile + i))
                w[i] = load_tile(now.codes, now.scales, first_tile + i, lane, policy);
    }
    clear_routing(routing, THREADS);
    wait_for_previous_kernel();
    allow_next_kernel();         // not before: moe_nvfp4_down reads the routing without a wait
    read_routing(routing, expert_ids, num_pairs, THREADS);
    const int num_items = work.num_dense + routing.num_hit * num_row_tiles;
    if (item >= num_items) return;
    if (!is_dense(work, item)) {
        now = source_of(work, routing, item);
#pragma unroll
        for (int i = 0; i < PREFETCH; ++i)
            if (in_matrix(first_tile + i))
                w[i] = load_tile(now.codes, now.scales, first_tile + i, lane, policy);
    }
    while (item < num_items) {
        const bool dense = is_dense(work, item);
        const int next_item = item + gridDim.x, of_expert = item - work.num_dense;
        const int expert = dense ? -1 : routing.hit[of_expert / num_row_tiles];
        const int count = dense ? work.num_tokens : __popc(routing.tokens[expert]);
        Source next = now;
        if (next_item < num_items) next = source_of(work, routing, next_item);
        u32 own_scale = 0;       // requested here: the end of an item does not wait for memory
        if (threadIdx.x < 2) own_scale = load_weights(now.row_scales + threadIdx.x, policy);
#if BLOCKS == 2
        if (count > 8) {
            const u16* rows[2];
            find_rows<2>(rows, x, dense_x, work, routing, expert, lane);
            multiply_item<2>(partial[buffer][warp], w, rows, now, next, next_item < num_items,
                             first_tile, lane, policy);
        } else
#endif
        {
            const u16* rows[1];
            find_rows<1>(rows, x, dense_x, work, routing, expert, lane);
            multiply_item<1>(partial[buffer][warp], w, rows, now, next, next_item < num_items,
                             first_tile, lane, policy);
        }
        if (threadIdx.x < 2) tile_scales[buffer][threadIdx.x] = __uint_as_float(own_scale);
        __syncthreads();
        for (int i = threadIdx.x; i < 8 * count; i += THREADS) {
            int row = i & 7, n = i >> 3;
            float gate = summed(partial[buffer], row, n) * tile_scales[buffer][0];
            float up = summed(partial[buffer], row + 8, n) * tile_scales[buffer][1];
            u16 value = to_bf16(gelu_tanh(rounded_to_bf16(gate)) * rounded_to_bf16(up));
            if (dense) {
                dense_inner[(u64)n * (dense_row_tiles * 8) + item * 8 + row] = value;
            } else {
                u64 pair = (u64)pair_of(routing, expert, n);
                inner[pair * (num_row_tiles * 8) + of_expert % num_row_tiles * 8 + row] = value;
            }
        }
        buffer ^= 1;             // the next item's barrier comes before this half's next use
        item = next_item;
        now = next;
    }
}

#elif ENTRY == 1

#define THREADS (WARPS * WARP)

__device__ __forceinline__ Source source_of(const Work& work, const Routing& routing, int item) {
    if (is_dense(work, item)) {
        int part = item / work.dense_row_tiles, row_tile = item % work.dense_row_tiles;
        return source_at(work.dense, ((u64)row_tile * DENSE + part) * COLUMN_TILES, row_tile);
    }
    item -= work.num_dense;
    u64 row_tile = (u64)routing.hit[item / work.num_row_tiles] * work.num_row_tiles
                   + item % work.num_row_tiles;
    return source_at(work.experts, row_tile * COLUMN_TILES, row_tile);
}

// Up to 8 * NB rows of one item; leaves w with the first tiles of `next`.
template <int NB>
__device__ __forceinline__ void multiply_item(u16* __restrict__ results,
                                              float* __restrict__ dense_parts,
                                              WeightTile (&w)[PREFETCH], const u16* inner,
                                              const u16* dense_inner, const Work& work,
                                              const Routing& routing, int item, const Source& now,
                                              const Source& next, bool has_next, int num_outputs,
                                              int lane, u64 policy) {
    const int g = lane >> 2, t = lane & 3;
    const bool dense = is_dense(work, item);
    const int row_tiles = dense ? work.dense_row_tiles : work.num_row_tiles;
    const int number = dense ? item : item - work.num_dense;
    const int part = number / row_tiles, first_row = number % row_tiles * TILE_ROWS;
    const int expert = dense ? 0 : routing.hit[part];
    const u16* rows[NB];
#pragma unroll
    for (int m = 0; m < NB; ++m) {
        if (dense) {
            const int n = 8 * m + g;
            rows[m] = n < work.num_tokens
                ? dense_inner + ((u64)n * DENSE + part) * COLUMNS + 8 * t : 0;
        } else {
            int pair = pair_of(routing, expert, 8 * m + g);
            rows[m] = pair < 0 ? 0 : inner + (u64)pair * COLUMNS + 8 * t;
        }
    }
    u32 scale[2];                // requested here: the end of an item does not wait for memory
#pragma unroll
    for (int half = 0; half < 2; ++half) scale[half] = load_weights(now.row_scales + half, policy);
    constexpr int AHEAD = NB == 1 ? ACTIVATIONS : 1;
    ActivationTile x_tile[AHEAD][NB];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i)
        if (i < COLUMN_TILES) load_activation_tile<NB>(x_tile[i], rows, t, i, COLUMNS);
    float acc[2][NB][4] = {};
    for (int base = 0; base < COLUMN_TILES; base += PREFETCH) {
#pragma unroll
        for (int i = 0; i < PREFETCH; ++i) {
            int tile = base + i;
            if (tile >= COLUMN_TILES) continue;
            multiply_tile<NB>(acc, w[i], x_tile[i % AHEAD]);
            if (tile + AHEAD < COLUMN_TILES)
                load_activation_tile<NB>(x_tile[i % AHEAD], rows, t, tile + AHEAD, COLUMNS);
            bool same_row = tile + PREFETCH < COLUMN_TILES;
            const Source& from = same_row ? now : next;
            if (same_row || has_next)
                w[i] = load_tile(from.codes, from.scales, same_row ? tile + PREFETCH : i, lane,
                                 policy);
        }
    }
#pragma unroll
    for (int m = 0; m < NB; ++m) {
#pragma unroll
        for (int parity = 0; parity < 2; ++parity) {
            const int n = 8 * m + 2 * t + parity;
            const int pair = dense ? n < work.num_tokens ? n : -1 : pair_of(routing, expert, n);
            if (pair < 0) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int row = first_row + g + 8 * half, j = 2 * half + parity;
                float value = (acc[0][m][j] + acc[1][m][j]) * __uint_as_float(scale[half]);
                if (row >= num_outputs) continue;
                if (dense) {
                    dense_parts[((u64)n * DENSE + part) * num_outputs + row] = value;
                } else {
                    results[(u64)pair * num_outputs + row] = to_bf16(value);
                }
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
moe_nvfp4_down(u16* __restrict__ results, float* __restrict__ dense_parts, const u16* inner,
               const u16* dense_inner, const int* expert_ids, const uint4* __restrict__ codes,
               const u32* __restrict__ scales, const float* __restrict__ row_scales,
               const uint4* __restrict__ dense_codes, const u32* __restrict__ dense_scales,
               const float* __restrict__ dense_row_scales, int num_pairs, int num_row_tiles,
               int dense_row_tiles, int num_outputs) {
    __shared__ Routing routing;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, stride = gridDim.x * WARPS;
    const Work work = {{codes, scales, row_scales}, {dense_codes, dense_scales, dense_row_scales},
                       num_row_tiles, DENSE * dense_row_tiles, dense_row_tiles,
                       num_pairs / CHOSEN};
    // neighbouring items go to different multiprocessors, so that few items use all of them
    int item = warp * gridDim.x + blockIdx.x;
    allow_next_kernel();
    u64 policy = streaming_policy();
    // gate_up let this launch begin after its own wait: the routing is complete, inner is not
    clear_routing(routing, THREADS);
    read_routing(routing, expert_ids, num_pairs, THREADS);
    const int num_items = work.num_dense + routing.num_hit * num_row_tiles;
    if (item >= num_items) return;
    Source now = source_of(work, routing, item);
    WeightTile w[PREFETCH];
#pragma unroll
    for (int i = 0; i < PREFETCH; ++i) w[i] = load_tile(now.codes, now.scales, i, lane, policy);
    wait_for_previous_kernel();
    while (item < num_items) {
        const int next_item = item + stride;
        Source next = now;
        if (next_item < num_items) next = source_of(work, routing, next_item);
#if BLOCKS == 2
        const int count = is_dense(work, item) ? work.num_tokens
            : __popc(routing.tokens[routing.hit[(item - work.num_dense) / num_row_tiles]]);
        if (count > 8)
            multiply_item<2>(results, dense_parts, w, inner, dense_inner, work, routing, item, now,
                             next, next_item < num_items, num_outputs, lane, policy);
        else
#endif
        multiply_item<1>(results, dense_parts, w, inner, dense_inner, work, routing, item, now,
                         next, next_item < num_items, num_outputs, lane, policy);
        item = next_item;
        now = next;
    }
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
