// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Which experts the rows of a step go to, listed by every block for itself in shared memory, so
// that routing needs no launch to sort.
//
// PRECOND: at most 16 tokens and 128 pairs; a token's expert ids differ.
// Constants: CHOSEN (K), NUM_EXPERTS (E).

#define MAX_TOKENS 16
#define MAX_PAIRS 128

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
    // A warp for each 32 experts; it counts those before on its own, so that none waits for another.
    const int lane = threadIdx.x % WARP;
    for (int chunk = threadIdx.x / WARP; chunk * WARP < NUM_EXPERTS; chunk += num_threads / WARP) {
        int count = 0, before = 0, own = 0;
        u32 hits = 0;
        for (int c = 0; c <= chunk; ++c) {
            count += __popc(hits);
            before += __reduce_add_sync(FULL_MASK, own);
            const int expert = c * WARP + lane;
            own = expert < NUM_EXPERTS ? __popc(routing.tokens[expert]) : 0;
            hits = __ballot_sync(FULL_MASK, own > 0);
        }
        int upto = own;
#pragma unroll
        for (int step = 1; step < WARP; step *= 2) {
            const int other = __shfl_up_sync(FULL_MASK, upto, step);
            if (lane >= step) upto += other;
        }
        const int place = count + __popc(hits & ((1u << lane) - 1));
        if (own > 0) {
            const int expert = chunk * WARP + lane;
            routing.hit[place] = (u16)expert;
            routing.first[place] = routing.start[expert] = (u8)(before + upto - own);
        }
        if ((chunk + 1) * WARP >= NUM_EXPERTS && lane == WARP - 1) {
            routing.num_hit = place + (own > 0);
            routing.first[routing.num_hit] = (u8)(before + upto);
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
