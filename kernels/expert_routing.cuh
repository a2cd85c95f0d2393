// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Which experts the rows of a step go to, listed by every block for itself in shared memory, so
// that routing needs no launch to sort.
//
// PRECOND: at most 16 tokens and 128 pairs; a token's expert ids differ; a thread for each pair.
// Constants: CHOSEN (K), NUM_EXPERTS (E), BLOCKS (8 tokens or fewer: 1, else 2).

#define MAX_TOKENS 16
#define MAX_PAIRS 128
#define CHUNKS ((NUM_EXPERTS + WARP - 1) / WARP)

struct Routing {
    u32 tokens[CHUNKS * WARP];   // bit t: token t goes to this expert
    u32 chunks[CHUNKS];          // what each 32 experts have
    u8 start[CHUNKS * WARP];     // of its pairs in `pairs`
    u16 hit[MAX_PAIRS];          // the distinct experts, those of more than 8 pairs first
    u8 first[MAX_PAIRS];         // of each of them in `pairs`
    u8 count[MAX_PAIRS];         // its pairs
    u8 pairs[MAX_PAIRS];         // by expert, ascending
    int num_hit, num_wide;       // distinct experts; those of more than 8 pairs
};

// Called by the whole block before anything depends on the kernel before.
__device__ __forceinline__ void clear_routing(Routing& routing, int num_threads) {
    for (int e = threadIdx.x; e < CHUNKS * WARP; e += num_threads) routing.tokens[e] = 0;
    __syncthreads();
}

__device__ __forceinline__ int expert_of_pair(const int* expert_ids, int pair) {
    u32 expert = load_result((const u32*)expert_ids + pair);
    return expert < NUM_EXPERTS ? expert : NUM_EXPERTS;
}

// No loop over pairs, and the chunks' counts meet in shared memory: all of this runs once, so that
// its instructions are waited for one after the other.
__device__ __forceinline__ void read_routing(Routing& routing, const int* expert_ids,
                                             int num_pairs, int num_threads) {
    const int pair = threadIdx.x;
    const bool real = pair < num_pairs;
    const int own_expert = real ? expert_of_pair(expert_ids, pair) : NUM_EXPERTS;
    if (num_pairs == CHOSEN) {           // one token: nothing to sort
        if (real) {
            routing.hit[pair] = (u16)own_expert;
            routing.first[pair] = routing.pairs[pair] = (u8)pair;
            routing.count[pair] = 1;
            if (pair == 0) {
                routing.num_hit = own_expert < NUM_EXPERTS ? CHOSEN : 0;
                routing.num_wide = 0;
            }
        }
        __syncthreads();
        return;
    }
    const u32 token = (u32)pair / CHOSEN;
    if (own_expert < NUM_EXPERTS) atomicOr(&routing.tokens[own_expert], 1u << token);
    __syncthreads();
    // A warp for each 32 experts, maybe for several of them. What it tells others: its pairs, its
    // experts of more than 8, its other ones.
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
#pragma unroll 1
    for (int chunk = warp; chunk < CHUNKS; chunk += num_threads / WARP) {
        const int count = __popc(routing.tokens[chunk * WARP + lane]);
        const u32 wide = BLOCKS == 1 ? 0 : __popc(__ballot_sync(FULL_MASK, count > 8));
        const u32 hit = __popc(__ballot_sync(FULL_MASK, count > 0));
        const u32 pairs = __reduce_add_sync(FULL_MASK, count);
        if (lane == 0) routing.chunks[chunk] = pairs | wide << 8 | (hit - wide) << 16;
    }
    __syncthreads();
#pragma unroll 1
    for (int chunk = warp; chunk < CHUNKS; chunk += num_threads / WARP) {
        u32 before = 0, all = 0;         // no field overflows: 128 pairs
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            const u32 counts = routing.chunks[c];
            if (c < chunk) before += counts;
            all += counts;
        }
        const int expert = chunk * WARP + lane, count = __popc(routing.tokens[expert]);
        const u32 more = BLOCKS == 1 ? 0 : __ballot_sync(FULL_MASK, count > 8);
        const u32 fewer = __ballot_sync(FULL_MASK, count > 0) & ~more;
        int upto = count;
#pragma unroll
        for (int step = 1; step < WARP; step *= 2) {
            const int other = __shfl_up_sync(FULL_MASK, upto, step);
            if (lane >= step) upto += other;
        }
        const u32 below = (1u << lane) - 1, num_wide = all >> 8 & 0xFF;
        const u32 place = count > 8 ? (before >> 8 & 0xFF) + __popc(more & below)
                                    : num_wide + (before >> 16) + __popc(fewer & below);
        if (count > 0) {
            routing.hit[place] = (u16)expert;
            routing.first[place] = routing.start[expert] = (u8)((before & 0xFF) + upto - count);
            routing.count[place] = (u8)count;
        }
        if (chunk == 0 && lane == 0) {
            routing.num_hit = num_wide + (all >> 16);
            routing.num_wide = num_wide;
        }
    }
    __syncthreads();
    if (own_expert < NUM_EXPERTS) {
        const u32 earlier = routing.tokens[own_expert] & ((1u << token) - 1);
        routing.pairs[routing.start[own_expert] + __popc(earlier)] = (u8)pair;
    }
    __syncthreads();
}
