// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// moe_items: the pairs (token, choice) of a few generated rows by expert, in one launch: what
// prefill_sort.cu does for prompts in two.
//
// expert_ids (T K) i32, -1 for padding; order (T K) i32: pairs of one expert together, ascending
// items      (max_items) int4: {expert, first place in order, pairs, 0}, experts in the order in
//            which they first occur; pairs = 0 in those that are left over
//
// Bytes moved: T K 8 + max_items 16. Bound by latency: two passes over ids in shared memory.
// One block, a thread a pair.
//
// PRECOND: num_pairs at most THREADS; a token has an expert once, so an item has at most T pairs
// Constants: THREADS.

extern "C" __global__ void __launch_bounds__(THREADS)
moe_items(int* __restrict__ order, int4* __restrict__ items, const int* expert_ids, int num_pairs,
          int max_items) {
    __shared__ int ids[THREADS], leaders[THREADS];       // the first pair of the same expert
    const int pair = threadIdx.x;
    allow_next_kernel();
    wait_for_previous_kernel();
    const int own = pair < num_pairs ? (int)load_activation_word(expert_ids + pair) : -1;
    ids[pair] = own;
    __syncthreads();
    int rank = 0, count = 0, leader = pair;
    for (int other = num_pairs - 1; other >= 0; --other) {
        if (ids[other] != own) continue;
        ++count;
        rank += other < pair;
        leader = other;
    }
    leaders[pair] = own >= 0 ? leader : THREADS;
    __syncthreads();
    int place = rank, item = 0, total = 0;
    for (int other = 0; other < num_pairs; ++other) {
        const int first = leaders[other];
        place += first < leader;
        item += first == other && first < leader;
        total += first == other;
    }
    if (own >= 0) {
        order[place] = pair;
        if (leader == pair) items[item] = make_int4(own, place, count, 0);
    }
    for (int i = total + pair; i < max_items; i += THREADS) items[i] = make_int4(0, 0, 0, 0);
}
