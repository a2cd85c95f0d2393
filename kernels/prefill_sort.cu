// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// The pairs (token, choice) of prompt rows in the order of their experts, in two launches:
//   prefill_sort   order = the pairs by (expert, pair), without those of padding; offsets[e] = the
//                  number of pairs of experts below e
//   prefill_tiles  tiles = {expert, first place in order, rows, 0}: each expert's pairs cut into
//                  tiles of at most tile_rows; rows = 0 in those that are left over
//
// expert_ids (T K) i32, -1 for padding; order (T K) i32; offsets (E + 1) i32
// tiles      (max_tiles) int4; T K / tile_rows + min(E, T K) are enough
//
// Bytes moved: E T K 8 from the L2, T K 4 and max_tiles 16 written. Bound by latency.
// One block an expert: a warp takes a run of pairs, counts those of its expert and of lower ones,
// and after an exchange writes its own in order; 8 reads in flight. No atomics: the order is the
// same at every run.
//
// PRECOND: NUM_EXPERTS at most 1,024
// Constants: NUM_EXPERTS.

#define THREADS 1024
#define WARPS (THREADS / WARP)
#define AHEAD 8

extern "C" __global__ void __launch_bounds__(1024)
prefill_sort(int* __restrict__ order, int* __restrict__ offsets, const int* expert_ids,
             int num_pairs) {
    __shared__ int lower[WARPS], equal[WARPS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, expert = blockIdx.x;
    const int share = (num_pairs + THREADS - 1) / THREADS * WARP;
    const int begin = warp * share, end = min(begin + share, num_pairs);
    allow_next_kernel();
    wait_for_previous_kernel();
    int num_lower = 0, num_equal = 0;
    for (int base = begin; base < end; base += AHEAD * WARP) {
        int ids[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const int pair = base + i * WARP + lane;
            ids[i] = pair < end ? (int)load_activation_word(expert_ids + pair) : -1;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            num_lower += __popc(__ballot_sync(FULL_MASK, ids[i] >= 0 && ids[i] < expert));
            num_equal += __popc(__ballot_sync(FULL_MASK, ids[i] == expert));
        }
    }
    if (lane == 0) {
        lower[warp] = num_lower;
        equal[warp] = num_equal;
    }
    __syncthreads();
    int first = 0, place = 0, total = 0;
    for (int w = 0; w < WARPS; ++w) {
        first += lower[w];
        place += w < warp ? equal[w] : 0;
        total += equal[w];
    }
    if (threadIdx.x == 0) {
        offsets[expert] = first;
        if (expert == NUM_EXPERTS - 1) offsets[NUM_EXPERTS] = first + total;
    }
    place += first;
    for (int base = begin; base < end; base += AHEAD * WARP) {
        int ids[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const int pair = base + i * WARP + lane;
            ids[i] = pair < end ? (int)load_activation_word(expert_ids + pair) : -1;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const u32 own = __ballot_sync(FULL_MASK, ids[i] == expert);
            if (ids[i] == expert) {
                order[place + __popc(own & ((1u << lane) - 1))] = base + i * WARP + lane;
            }
            place += __popc(own);
        }
    }
}

extern "C" __global__ void __launch_bounds__(1024)
prefill_tiles(int4* __restrict__ tiles, const int* offsets, int tile_rows, int max_tiles) {
    __shared__ int sums[WARPS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, expert = threadIdx.x;
    allow_next_kernel();
    wait_for_previous_kernel();
    int first = 0, count = 0;
    if (expert < NUM_EXPERTS) {
        first = (int)load_activation_word(offsets + expert);
        count = (int)load_activation_word(offsets + expert + 1) - first;
    }
    const int own = (count + tile_rows - 1) / tile_rows;
    int end = own;                       // tiles of this and the lower experts
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        const int other = __shfl_up_sync(FULL_MASK, end, step);
        if (lane >= step) end += other;
    }
    if (lane == WARP - 1) sums[warp] = end;
    __syncthreads();
    int total = 0;
    for (int w = 0; w < WARPS; ++w) {
        if (w < warp) end += sums[w];
        total += sums[w];
    }
    for (int i = 0; i < own; ++i) {
        const int start = i * tile_rows;
        tiles[end - own + i] = make_int4(expert, first + start, min(tile_rows, count - start), 0);
    }
    for (int i = total + threadIdx.x; i < max_tiles; i += THREADS) {
        tiles[i] = make_int4(0, 0, 0, 0);
    }
}
