// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Which experts the rows of a step go to, found by every block for itself, so that routing needs no
// launch to sort.
//
// LISTED 0: a block reads the ids, then each warp finds all distinct experts for itself. All write
// the same into shared memory, so that none waits for another; an expert's rows are looked for when
// a warp begins with it. LISTED 1: a block lists all rows by expert, those of more than 8 rows
// first, behind five barriers.
//
// PRECOND: at most 16 tokens and 128 pairs; a token's expert ids differ; K <= 32; a thread for each
// pair.
// Constants: CHOSEN (K), NUM_EXPERTS (E), BLOCKS (8 tokens or fewer: 1, else 2), LISTED; WARPS.

#define MAX_TOKENS 16
#define MAX_PAIRS 128
#define CHUNKS ((NUM_EXPERTS + WARP - 1) / WARP)

// Distinct experts; those of more than 8 pairs that come first.
struct Hits {
    int num, wide;
};

__device__ __forceinline__ int expert_of_pair(const int* expert_ids, int pair) {
    u32 expert = load_result((const u32*)expert_ids + pair);
    return expert < NUM_EXPERTS ? expert : NUM_EXPERTS;
}

#if LISTED

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

// No loop over pairs, and the chunks' counts meet in shared memory: all of this runs once, so that
// its instructions are waited for one after the other.
__device__ __forceinline__ Hits read_routing(Routing& routing, const int* expert_ids,
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
        return {routing.num_hit, 0};
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
    return {routing.num_hit, routing.num_wide};
}

// What a warp knows of its unit's rows.
struct UnitRows {
    int number;

    __device__ __forceinline__ int count() const { return number; }
};
#define UNIT_UNKNOWN {0}

__device__ __forceinline__ void find_rows(UnitRows& rows, Routing& routing, int unit,
                                          int num_tokens, int num_dense, int lane) {
    rows.number = unit < num_dense ? num_tokens : routing.count[unit - num_dense];
}

// The n-th row's token or pair.
__device__ __forceinline__ int row_of(const Routing& routing, int unit, int n, int num_dense) {
    return unit < num_dense ? n : routing.pairs[routing.first[unit - num_dense] + n];
}

#else

#define WIDEST_TOKENS (BLOCKS == 1 ? 8 : MAX_TOKENS)
#define MOST_PAIRS (CHOSEN * WIDEST_TOKENS < MAX_PAIRS ? CHOSEN * WIDEST_TOKENS : MAX_PAIRS)
#define PAIRS_EACH ((MOST_PAIRS + WARP - 1) / WARP)      // of a lane

struct Routing {
    u16 ids[PAIRS_EACH * WARP];  // experts of the pairs; NUM_EXPERTS: none
    u16 hit[MAX_PAIRS];          // the distinct experts, ascending; of one token best first
    u8 rows[WARPS][MAX_TOKENS];  // of each warp's unit: tokens, or pairs
};

__device__ __forceinline__ void clear_routing(Routing&, int) {}

// The ids by the block, so that they are read once; the rest by every warp, all of which write the
// same.
__device__ __forceinline__ Hits read_routing(Routing& routing, const int* expert_ids,
                                             int num_pairs, int) {
    const int lane = threadIdx.x % WARP, pair = threadIdx.x;
    if (pair < PAIRS_EACH * WARP)
        routing.ids[pair] = (u16)(pair < num_pairs ? expert_of_pair(expert_ids, pair)
                                                   : NUM_EXPERTS);
    __syncthreads();
    u32 own[PAIRS_EACH];
#pragma unroll
    for (int i = 0; i < PAIRS_EACH; ++i) own[i] = routing.ids[i * WARP + lane];
    int num_hit = 0;
    if (num_pairs == CHOSEN) {           // one token: nothing to sort
        if (lane < CHOSEN) routing.hit[lane] = (u16)own[0];
        num_hit = __shfl_sync(FULL_MASK, own[0], 0) < NUM_EXPERTS ? CHOSEN : 0;
    } else {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
            u32 mask = 0;
#pragma unroll
            for (int i = 0; i < PAIRS_EACH; ++i)
                if ((NUM_EXPERTS % WARP == 0 || own[i] < NUM_EXPERTS) && own[i] / WARP == c)
                    mask |= 1u << own[i] % WARP;
            mask = __reduce_or_sync(FULL_MASK, mask);
            if (mask >> lane & 1)
                routing.hit[num_hit + __popc(mask & ((1u << lane) - 1))] = (u16)(c * WARP + lane);
            num_hit += __popc(mask);
        }
    }
    __syncwarp();
    return {num_hit, 0};
}

// What a warp knows of its unit's rows, which lie in its part of the routing.
struct UnitRows {
    int unit_and_count;          // whose they are, and below 8 bits of how many: one register

    __device__ __forceinline__ int count() const { return unit_and_count & 0xFF; }
};
#define UNIT_UNKNOWN {-1}

// A unit's rows, listed where the warp has had another one; unit, num_dense and what is known are
// the same in all lanes.
__device__ __forceinline__ void find_rows(UnitRows& rows, Routing& routing, int unit,
                                          int num_tokens, int num_dense, int lane) {
    if (rows.unit_and_count >> 8 == unit) return;
    int count = 0;
    u8 (&list)[MAX_TOKENS] = routing.rows[threadIdx.x / WARP];
    __syncwarp();                // the other unit's are not needed any more
    if (unit < num_dense) {
        count = num_tokens;
        if (lane < MAX_TOKENS) list[lane] = (u8)lane;
    } else {
        const u32 expert = routing.hit[unit - num_dense];
#pragma unroll
        for (int i = 0; i < PAIRS_EACH; ++i) {
            const bool own = routing.ids[i * WARP + lane] == expert;
            const u32 all = __ballot_sync(FULL_MASK, own);
            if (own) list[count + __popc(all & ((1u << lane) - 1))] = (u8)(i * WARP + lane);
            count += __popc(all);
        }
    }
    rows.unit_and_count = unit << 8 | count;
    __syncwarp();
}

// The n-th row's token or pair.
__device__ __forceinline__ int row_of(const Routing& routing, int, int n, int) {
    return routing.rows[threadIdx.x / WARP][n];
}

#endif
