// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Which experts the rows of a step go to, listed by every block for itself in shared memory, so
// that routing needs no launch to sort.
//
// PRECOND: at most 16 tokens and 128 pairs; a token's expert ids differ.
// Constants: CHOSEN (K), NUM_EXPERTS (E), BLOCKS (8 tokens or fewer: 1, else 2).

#define MAX_TOKENS 16
#define MAX_PAIRS 128

struct Routing {
    u32 tokens[NUM_EXPERTS];     // bit t: token t goes to this expert
    u8 start[NUM_EXPERTS];       // of its pairs in `pairs`
    u16 expert_of[MAX_PAIRS];    // NUM_EXPERTS: none
    u16 hit[MAX_PAIRS];          // the distinct experts, those of more than 8 pairs first
    u8 first[MAX_PAIRS];         // of each of them in `pairs`
    u8 count[MAX_PAIRS];         // its pairs
    u8 pairs[MAX_PAIRS];         // by expert, ascending
    int num_hit, num_wide;       // distinct experts; those of more than 8 pairs
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
            routing.first[threadIdx.x] = routing.pairs[threadIdx.x] = (u8)threadIdx.x;
            routing.count[threadIdx.x] = 1;
            if (threadIdx.x == 0) {
                routing.num_hit = expert < NUM_EXPERTS ? CHOSEN : 0;
                routing.num_wide = 0;
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
        int pairs_before = 0, wide_before = 0, narrow_before = 0, num_wide = 0, own = 0;
        u32 wide = 0, narrow = 0;
        for (int c = 0; c * WARP < NUM_EXPERTS; ++c) {
            if (c > chunk && BLOCKS == 1) break;
            const int expert = c * WARP + lane;
            const int count = expert < NUM_EXPERTS ? __popc(routing.tokens[expert]) : 0;
            const u32 more = BLOCKS == 1 ? 0 : __ballot_sync(FULL_MASK, count > 8);
            num_wide += __popc(more);
            if (c > chunk) continue;
            pairs_before += __reduce_add_sync(FULL_MASK, own);
            wide_before += __popc(wide);
            narrow_before += __popc(narrow);
            own = count;
            wide = more;
            narrow = __ballot_sync(FULL_MASK, count > 0) & ~more;
        }
        int upto = own;
#pragma unroll
        for (int step = 1; step < WARP; step *= 2) {
            const int other = __shfl_up_sync(FULL_MASK, upto, step);
            if (lane >= step) upto += other;
        }
        const u32 below = (1u << lane) - 1;
        const int place = own > 8 ? wide_before + __popc(wide & below)
                                  : num_wide + narrow_before + __popc(narrow & below);
        if (own > 0) {
            const int expert = chunk * WARP + lane;
            routing.hit[place] = (u16)expert;
            routing.first[place] = routing.start[expert] = (u8)(pairs_before + upto - own);
            routing.count[place] = (u8)own;
        }
        if ((chunk + 1) * WARP >= NUM_EXPERTS && lane == 0) {
            routing.num_hit = num_wide + narrow_before + __popc(narrow);
            routing.num_wide = num_wide;
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
