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
// Each block first lists the distinct experts and their pairs in shared memory, so routing needs no
// launch to sort. moe_nvfp4_down must come right behind moe_nvfp4_gate_up. An
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
    u8 start[NUM_EXPERTS];       // of its pairs in `pairs`
    u16 expert_of[MAX_PAIRS];    // NUM_EXPERTS: none
    u16 hit[MAX_PAIRS];          // the distinct experts
    u8 first[MAX_PAIRS + 1];     // of each of them in `pairs`, and the end
    u8 pairs[MAX_PAIRS];         // by expert, ascending
    int num_hit;
};

// Called by the whole block before anything depends on the kernel before.
__device__ __forceinline__ void clear_routing(Routing& routing, int num_threads) {
    for (int e = threadIdx.x; e < NUM_EXPERTS; e += num_threads) routing.tokens[e] = 0;
    __syncthreads();
}

__device__ __forceinline__ int expert_of_pair(const int* expert_ids, int pair) {
    u32 expert = load_result((const u32*)expert_ids + pair);
    return expert < NUM_EXPERTS ? expert : NUM_EXPERTS;
}

__device__ __forceinline__ void read_routing(Routing& routing, const int* expert_ids,
                                             int num_pairs, int num_threads) {
    if (num_pairs == CHOSEN) {           // one token: nothing to sort
        if (threadIdx.x < CHOSEN) {
            int expert = expert_of_pair(expert_ids, threadIdx.x);
            routing.hit[threadIdx.x] = (u16)expert;
            routing.first[threadIdx.x + 1] = (u8)(threadIdx.x + 1);
            routing.pairs[threadIdx.x] = (u8)threadIdx.x;
            if (threadIdx.x == 0) {
                routing.first[0] = 0;
                routing.num_hit = expert < NUM_EXPERTS ? CHOSEN : 0;
            }
        }
        __syncthreads();
        return;
    }
    for (int pair = threadIdx.x; pair < num_pairs; pair += num_threads) {
        int expert = expert_of_pair(expert_ids, pair);
        routing.expert_of[pair] = (u16)expert;
        if (expert < NUM_EXPERTS) atomicOr(&routing.tokens[expert], 1u << (pair / CHOSEN));
    }
    __syncthreads();
    if (threadIdx.x < WARP) {
        int lane = threadIdx.x, count = 0, before = 0;
        for (int first = 0; first < NUM_EXPERTS; first += WARP) {
            int expert = first + lane;
            int own = expert < NUM_EXPERTS ? __popc(routing.tokens[expert]) : 0, upto = own;
#pragma unroll
            for (int step = 1; step < WARP; step *= 2) {
                int other = __shfl_up_sync(FULL_MASK, upto, step);
                if (lane >= step) upto += other;
            }
            u32 hits = __ballot_sync(FULL_MASK, own > 0);
            if (own > 0) {
                int place = count + __popc(hits & ((1u << lane) - 1));
                routing.hit[place] = (u16)expert;
                routing.first[place] = routing.start[expert] = (u8)(before + upto - own);
            }
            count += __popc(hits);
            before += __shfl_sync(FULL_MASK, upto, WARP - 1);
        }
        if (lane == 0) {
            routing.num_hit = count;
            routing.first[count] = (u8)before;
        }
    }
    __syncthreads();
    for (int pair = threadIdx.x; pair < num_pairs; pair += num_threads) {
        int expert = routing.expert_of[pair];
        if (expert == NUM_EXPERTS) continue;
        u32 earlier = routing.tokens[expert] & ((1u << (pair / CHOSEN)) - 1);
        routing.pairs[routing.start[expert] + __popc(earlier)] = (u8)pair;
    }
    __syncthreads();
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

struct Work {
    Matrices experts, dense;
    int num_row_tiles;           // of one unit
    int num_tokens;
};

// An item: a row tile of a unit. Units are the DENSE parts of the dense MLP, then the distinct
// experts. Places advance without a division.
struct Place {
    int unit, tile;
};

__device__ __forceinline__ Place place_of(int item, int num_row_tiles) {
    return {item / num_row_tiles, item % num_row_tiles};
}

__device__ __forceinline__ Place advanced(Place place, const Place& step, int num_row_tiles) {
    place.unit += step.unit;
    place.tile += step.tile;
    if (place.tile >= num_row_tiles) {
        place.tile -= num_row_tiles;
        ++place.unit;
    }
    return place;
}

// Rows that a unit has, and the n-th one's token or pair; -1 past the last.
__device__ __forceinline__ int num_rows(const Work& work, const Routing& routing, int unit) {
    if (unit < DENSE) return work.num_tokens;
    return routing.first[unit - DENSE + 1] - routing.first[unit - DENSE];
}

__device__ __forceinline__ int row_of(const Work& work, const Routing& routing, int unit, int n) {
    if (n >= num_rows(work, routing, unit)) return -1;
    return unit < DENSE ? n : routing.pairs[routing.first[unit - DENSE] + n];
}

#endif

#if ENTRY == 0

#define THREADS (K_WARPS * WARP)

__device__ __forceinline__ bool in_matrix(int column_tile) {
    return K_WARPS * WARP_TILES == COLUMN_TILES || column_tile < COLUMN_TILES;
}

__device__ __forceinline__ Source source_of(const Work& work, const Routing& routing,
                                            const Place& at) {
    const bool dense = at.unit < DENSE;
    const u32 matrix = dense ? at.unit : routing.hit[at.unit - DENSE];
    const u32 row_tile = matrix * work.num_row_tiles + at.tile;
    return source_at(dense ? work.dense : work.experts, row_tile * COLUMN_TILES, row_tile);
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
            const uint4* codes = same_row ? now.codes : next.codes;
            const u32* scales = same_row ? now.scales : next.scales;
            int column_tile = first_tile + (same_row ? tile + PREFETCH : i);
            if ((same_row || has_next) && in_matrix(column_tile))
                w[i] = load_tile(codes, scales, column_tile, lane, policy);
        }
    }
#pragma unroll
    for (int m = 0; m < NB; ++m)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            partial[m][j * (WARP + 1) + lane] = acc[0][m][j] + acc[1][m][j];
}

// The rows of a unit that this lane reads.
template <int NB>
__device__ __forceinline__ void find_rows(const u16* (&rows)[NB], const u16* x, const u16* dense_x,
                                          const Work& work, const Routing& routing, int unit,
                                          int lane) {
#pragma unroll
    for (int m = 0; m < NB; ++m) {
        const int row = row_of(work, routing, unit, 8 * m + (lane >> 2));
        const u16* from = unit < DENSE ? dense_x : x;
        const u32 token = unit < DENSE ? row : row / CHOSEN;
        rows[m] = row < 0 ? 0 : from + token * COLUMNS + 8 * (lane & 3);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
moe_nvfp4_gate_up(u16* __restrict__ inner, u16* __restrict__ dense_inner, const u16* x,
                  const u16* dense_x, const int* expert_ids, const uint4* __restrict__ codes,
                  const u32* __restrict__ scales, const float* __restrict__ row_scales,
                  const uint4* __restrict__ dense_codes, const u32* __restrict__ dense_scales,
                  const float* __restrict__ dense_row_scales, int num_pairs, int num_row_tiles) {
    // of two items: while some threads finish one, others begin the next
    __shared__ float partial[2][K_WARPS][BLOCKS][PARTIAL_SIZE];
    __shared__ float tile_scales[2][2];
    __shared__ Routing routing;
    int buffer = 0;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, first_tile = warp * WARP_TILES;
    const Work work = {{codes, scales, row_scales}, {dense_codes, dense_scales, dense_row_scales},
                       num_row_tiles, num_pairs / CHOSEN};
    const Place step = place_of(gridDim.x, num_row_tiles);
    Place at = place_of(blockIdx.x, num_row_tiles);
    u64 policy = streaming_policy();
    Source now = {};
    WeightTile w[PREFETCH];
    if (at.unit < DENSE) {
        now = source_of(work, routing, at);
#pragma unroll
        for (int i = 0; i < PREFETCH; ++i)
            if (in_matrix(first_tile + i))
                w[i] = load_tile(now.codes, now.scales, first_tile + i, lane, policy);
    }
    clear_routing(routing, THREADS);
    wait_for_previous_kernel();
    allow_next_kernel();         // not before: moe_nvfp4_down reads the routing without a wait
    read_routing(routing, expert_ids, num_pairs, THREADS);
    const int num_units = DENSE + routing.num_hit;
    if (at.unit >= num_units) return;
    if (at.unit >= DENSE) {
        now = source_of(work, routing, at);
#pragma unroll
        for (int i = 0; i < PREFETCH; ++i)
            if (in_matrix(first_tile + i))
                w[i] = load_tile(now.codes, now.scales, first_tile + i, lane, policy);
    }
    while (at.unit < num_units) {
        const Place next_at = advanced(at, step, num_row_tiles);
        const bool has_next = next_at.unit < num_units;
        const int count = num_rows(work, routing, at.unit);
        Source next = now;
        if (has_next) next = source_of(work, routing, next_at);
        u32 own_scale = 0;       // requested here: the end of an item does not wait for memory
        if (threadIdx.x < 2) own_scale = load_weights(now.row_scales + threadIdx.x, policy);
#if BLOCKS == 2
        if (count > 8) {
            const u16* rows[2];
            find_rows<2>(rows, x, dense_x, work, routing, at.unit, lane);
            multiply_item<2>(partial[buffer][warp], w, rows, now, next, has_next, first_tile, lane,
                             policy);
        } else
#endif
        {
            const u16* rows[1];
            find_rows<1>(rows, x, dense_x, work, routing, at.unit, lane);
            multiply_item<1>(partial[buffer][warp], w, rows, now, next, has_next, first_tile, lane,
                             policy);
        }
        if (threadIdx.x < 2) tile_scales[buffer][threadIdx.x] = __uint_as_float(own_scale);
        __syncthreads();
        for (int i = threadIdx.x; i < 8 * count; i += THREADS) {
            int row = i & 7, n = i >> 3, number = row_of(work, routing, at.unit, n);
            float gate = summed(partial[buffer], row, n) * tile_scales[buffer][0];
            float up = summed(partial[buffer], row + 8, n) * tile_scales[buffer][1];
            u16 value = to_bf16(gelu_tanh(rounded_to_bf16(gate)) * rounded_to_bf16(up));
            int column = at.tile * 8 + row, width = num_row_tiles * 8;
            if (at.unit < DENSE)
                dense_inner[(u32)(number * DENSE + at.unit) * width + column] = value;
            else
                inner[(u32)number * width + column] = value;
        }
        buffer ^= 1;             // the next item's barrier comes before this half's next use
        at = next_at;
        now = next;
    }
}

#elif ENTRY == 1

#define THREADS (WARPS * WARP)

__device__ __forceinline__ Source source_of(const Work& work, const Routing& routing,
                                            const Place& at) {
    if (at.unit < DENSE)
        return source_at(work.dense, (u32)(at.tile * DENSE + at.unit) * COLUMN_TILES, at.tile);
    const u32 row_tile = (u32)routing.hit[at.unit - DENSE] * work.num_row_tiles + at.tile;
    return source_at(work.experts, row_tile * COLUMN_TILES, row_tile);
}

// Up to 8 * NB rows of one item; leaves w with the first tiles of `next`.
template <int NB>
__device__ __forceinline__ void multiply_item(u16* __restrict__ results,
                                              float* __restrict__ dense_parts,
                                              WeightTile (&w)[PREFETCH], const u16* inner,
                                              const u16* dense_inner, const Work& work,
                                              const Routing& routing, const Place& at,
                                              const Source& now, const Source& next, bool has_next,
                                              int num_outputs, int lane, u64 policy) {
    const int g = lane >> 2, t = lane & 3, first_row = at.tile * TILE_ROWS;
    const bool dense = at.unit < DENSE;
    const u16* rows[NB];
#pragma unroll
    for (int m = 0; m < NB; ++m) {
        const int number = row_of(work, routing, at.unit, 8 * m + g);
        const u32 place = dense ? number * DENSE + at.unit : number;
        rows[m] = number < 0 ? 0 : (dense ? dense_inner : inner) + place * COLUMNS + 8 * t;
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
            const uint4* codes = same_row ? now.codes : next.codes;
            const u32* scales = same_row ? now.scales : next.scales;
            if (same_row || has_next)
                w[i] = load_tile(codes, scales, same_row ? tile + PREFETCH : i, lane,
                                 policy);
        }
    }
#pragma unroll
    for (int m = 0; m < NB; ++m) {
#pragma unroll
        for (int parity = 0; parity < 2; ++parity) {
            const int number = row_of(work, routing, at.unit, 8 * m + 2 * t + parity);
            if (number < 0) continue;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                int row = first_row + g + 8 * half, j = 2 * half + parity;
                float value = (acc[0][m][j] + acc[1][m][j]) * __uint_as_float(scale[half]);
                if (row >= num_outputs) continue;
                if (dense)
                    dense_parts[(u32)(number * DENSE + at.unit) * num_outputs + row] = value;
                else
                    results[(u32)number * num_outputs + row] = to_bf16(value);
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
               int num_outputs) {
    __shared__ Routing routing;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Work work = {{codes, scales, row_scales}, {dense_codes, dense_scales, dense_row_scales},
                       num_row_tiles, num_pairs / CHOSEN};
    // neighbouring items go to different multiprocessors, so that few items use all of them
    const Place step = place_of(gridDim.x * WARPS, num_row_tiles);
    Place at = place_of(warp * gridDim.x + blockIdx.x, num_row_tiles);
    allow_next_kernel();
    u64 policy = streaming_policy();
    // gate_up let this launch begin after its own wait: the routing is complete, inner is not
    clear_routing(routing, THREADS);
    read_routing(routing, expert_ids, num_pairs, THREADS);
    const int num_units = DENSE + routing.num_hit;
    if (at.unit >= num_units) return;
    Source now = source_of(work, routing, at);
    WeightTile w[PREFETCH];
#pragma unroll
    for (int i = 0; i < PREFETCH; ++i) w[i] = load_tile(now.codes, now.scales, i, lane, policy);
    wait_for_previous_kernel();
    while (at.unit < num_units) {
        const Place next_at = advanced(at, step, num_row_tiles);
        const bool has_next = next_at.unit < num_units;
        Source next = now;
        if (has_next) next = source_of(work, routing, next_at);
#if BLOCKS == 2
        if (num_rows(work, routing, at.unit) > 8)
            multiply_item<2>(results, dense_parts, w, inner, dense_inner, work, routing, at, now,
                             next, has_next, num_outputs, lane, policy);
        else
#endif
        multiply_item<1>(results, dense_parts, w, inner, dense_inner, work, routing, at, now, next,
                         has_next, num_outputs, lane, policy);
        at = next_at;
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
