// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Where top-p, and top-k above MAX_FAST_K, cut a row of logits; for sample.cu, between its
// sample_max and its sample_pick.
//   sample_search  one digit of a cut: the weight of every value of that digit. Six launches:
//                  stages 0 to 2 count ids for top-k, 3 to 5 add masses for top-p
//   sample_gather  the best id of every run above the cut, and the count and the best of the ids
//                  that have the cut's own value
//
// The total order is (larger value, lower id). Values are compared as 32-bit keys, digits of 11,
// 11 and 10 bits. A stage's blocks all read the bins of the stage before, find the bin in which
// the weights from the highest on reach the goal, and add up their own ids inside it. Equal keys
// have equal masses, so how many ids of the cut's key are kept follows by a division, and which of
// them from counts by run. All weights are integers: their sums have no order, and a row's cut
// depends on the row alone.
//
// logits, rows, masks, largest, equals, winners, bins, states: as in sample.cu
//
// Bytes moved: 4 R V at a row's first stage, later those of the runs that can hold the digits so
// far (from the L2); 16 KB of bins a block and stage. Bound by latency.
// Grid: (ceil(V / 2048), R); a warp takes one run. Masses are below 2^41: two words of 20 and 21
// bits, so that adding 2,048 of them takes 32-bit additions, which shared memory has.
//
// PRECOND: as sample.cu; sample_max has cleared the bins of the rows that are searched.
// Constants: none.

#include "sample_math.cuh"

#define RUN 256
#define THREADS 256
#define WARPS (THREADS / WARP)
#define BINS_PER_THREAD (SEARCH_BINS / THREADS)
#define LOW_BITS 20

// Position of the lowest bit of digit 0, 1, 2.
__device__ __forceinline__ int shift_of(int digit) { return digit == 0 ? 21 : digit == 1 ? 10 : 0; }

// Whether a key begins with the digits before `digit` of a prefix.
__device__ __forceinline__ bool begins_as(u32 key, u32 prefix, int digit) {
    return digit == 0 || (key ^ prefix) >> shift_of(digit - 1) == 0;
}

struct Found {
    u64 before, weight;                  // weight of the higher bins, and of this one
    int bin;                             // -1: none
};

// Sets s to what follows from a stage's bins: the next digit of the cut, and the goal inside it.
__device__ __forceinline__ void descend(Search& s, u64& weight, const u64* bins, int stage,
                                        double top_p, u64* room, Found* found) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    u64 own[BINS_PER_THREAD], sum = 0;
#pragma unroll
    for (int j = 0; j < BINS_PER_THREAD; ++j) {
        own[j] = bins[SEARCH_BINS - 1 - (threadIdx.x * BINS_PER_THREAD + j)];
        sum += own[j];
    }
    u64 upto = sum;                      // of this thread's bins and all higher ones of the warp
#pragma unroll
    for (int step = 1; step < WARP; step *= 2) {
        const u64 other = __shfl_up_sync(FULL_MASK, upto, step);
        if (lane >= step) upto += other;
    }
    if (threadIdx.x == 0) found->bin = -1;
    if (lane == WARP - 1) room[warp] = upto;
    __syncthreads();
    u64 total = 0;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        if (w == warp) upto += total;
        total += room[w];
    }
    if (stage == 3) s.goal = mass_limit(top_p, total - s.extra);
    u64 before = upto - sum;
    if (s.found && before < s.goal && s.goal <= upto) {
        bool here = false;
#pragma unroll
        for (int j = 0; j < BINS_PER_THREAD; ++j) {
            if (!here && before + own[j] >= s.goal) {
                *found = {before, own[j],
                          SEARCH_BINS - 1 - ((int)threadIdx.x * BINS_PER_THREAD + j)};
                here = true;
            }
            if (!here) before += own[j];
        }
    }
    __syncthreads();
    s.found = s.found && found->bin >= 0;
    if (s.found) {
        s.goal -= found->before;
        s.prefix |= (u32)found->bin << shift_of(stage % 3);
        weight = found->weight;
    }
    __syncthreads();                     // room and found may be written again
}

// What `stage` begins with: the state that the row's stage before began with, and its bins.
// SEARCH_STAGES is the end of the search. The first block of a row keeps it for the next launch.
__device__ __forceinline__ Search begin(int stage, Search* states, const u64* bins,
                                        const u32* largest, const Settings& settings,
                                        int num_runs, u64* room, Found* found) {
    const int first = searches_count(settings) ? 0 : 3;
    states += (u64)blockIdx.y * (SEARCH_STAGES + 1);
    bins += (u64)blockIdx.y * SEARCH_STAGES * SEARCH_BINS;
    Search s = {};
    if (stage == first) {
        s.top_key = place_key(largest_of_row(largest, num_runs, room, WARPS));
        s.found = s.top_key > MINUS_INFINITY_KEY && s.top_key < PLUS_INFINITY_KEY;
        s.goal = first == 0 ? settings.top_k : 1;
    } else {
        const int last = stage == SEARCH_STAGES && !searches_mass(settings) ? 2 : stage - 1;
        s = states[last];
        u64 weight = 0;
        descend(s, weight, bins + last * SEARCH_BINS, last, settings.top_p, room, found);
        const Scale scale = scale_of(settings, s.top_key);
        if (last == 2) {
            if (s.found) {
                s.cut_key = s.prefix;
                s.cut_count = (u32)s.goal;
                const u64 mass = mass_of(z_of(scale, key_value(s.cut_key)));
                s.extra = (weight - s.goal) * mass;
            }
            // from here on all that top-k left
            s.found = s.top_key > MINUS_INFINITY_KEY && s.top_key < PLUS_INFINITY_KEY;
            s.prefix = 0;
            s.goal = 1;
        } else if (last == 5 && s.found) {
            const u64 mass = mass_of(z_of(scale, key_value(s.prefix)));
            const u64 count = (s.goal + mass - 1) / mass;
            const bool same = s.prefix == s.cut_key;
            s.cut_key = s.prefix;
            s.cut_count = (u32)(same ? min(count, (u64)s.cut_count) : count);
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) states[stage] = s;
    return s;
}

extern "C" __global__ void __launch_bounds__(THREADS)
sample_search(u64* bins, Search* states, const u32* largest, const float* logits,
              const Settings* rows, const u32* masks, int stage, int vocab_size, int num_runs) {
    __shared__ u64 room[WARPS];
    __shared__ Found found;
    __shared__ u32 low[SEARCH_BINS], high[SEARCH_BINS];
    const int run = blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int digit = stage % 3;
    const bool by_mass = stage >= 3;
    allow_next_kernel();
    for (int bin = threadIdx.x; bin < SEARCH_BINS; bin += THREADS) low[bin] = high[bin] = 0;
    wait_for_previous_kernel();
    const Settings settings = rows[blockIdx.y];
    if (by_mass ? !searches_mass(settings) : !searches_count(settings)) return;
    largest += (u64)blockIdx.y * num_runs;
    const Search s = begin(stage, states, bins, largest, settings, num_runs, room, &found);
    if (!s.found) return;
    __syncthreads();                     // the bins are clear
    const Scale scale = scale_of(settings, s.top_key);
    const u32 most = run < num_runs ? load_activation_word(largest + run) : 0;
    // a run whose largest value lies below all that is looked for is not read
    if (most >= max(s.prefix, s.cut_key) && z_of(scale, key_value(most)) >= scale.lowest) {
        const float* row = logits + (u64)blockIdx.y * vocab_size;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const float4 v = load_values(row, masks, settings.mask, run * RUN + part * 128
                                         + lane * 4, vocab_size);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const u32 key = order_key(element(v, i));
                const float z = z_of(scale, element(v, i));
                if (!(z >= scale.lowest) || key < s.cut_key || !begins_as(key, s.prefix, digit)) {
                    continue;
                }
                const u32 bin = key >> shift_of(digit) & (digit == 2 ? 1023 : SEARCH_BINS - 1);
                const u64 weight = by_mass ? mass_of(z) : 1;
                atomicAdd(low + bin, (u32)weight & ((1u << LOW_BITS) - 1));
                if (weight >> LOW_BITS) atomicAdd(high + bin, (u32)(weight >> LOW_BITS));
            }
        }
    }
    __syncthreads();
    u64* own = bins + ((u64)blockIdx.y * SEARCH_STAGES + stage) * SEARCH_BINS;
    for (int bin = threadIdx.x; bin < SEARCH_BINS; bin += THREADS) {
        const u64 weight = ((u64)high[bin] << LOW_BITS) + low[bin];
        if (weight) atomicAdd(own + bin, weight);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
sample_gather(u64* __restrict__ winners, u64* __restrict__ equal_winners, u32* __restrict__ equals,
              u64* bins, Search* states, const u32* largest, const float* logits,
              const Settings* rows, const u32* masks, int vocab_size, int num_runs) {
    __shared__ u64 room[WARPS];
    __shared__ Found found;
    const int run = blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    allow_next_kernel();
    wait_for_previous_kernel();
    const Settings settings = rows[blockIdx.y];
    if (!searches_count(settings) && !searches_mass(settings)) return;
    const u64 runs = (u64)blockIdx.y * num_runs;
    const Search s = begin(SEARCH_STAGES, states, bins, largest + runs, settings, num_runs, room,
                           &found);
    if (run >= num_runs || s.top_key <= MINUS_INFINITY_KEY || s.top_key >= PLUS_INFINITY_KEY) {
        return;
    }
    const Scale scale = scale_of(settings, s.top_key);
    const u32 most = load_activation_word(largest + runs + run);
    u64 winner = 0, equal_winner = 0;
    u32 count = 0;
    if (most >= s.cut_key && z_of(scale, key_value(most)) >= scale.lowest) {
        const NoiseKey key = noise_key(settings);
        const float* row = logits + (u64)blockIdx.y * vocab_size;
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const int first = run * RUN + part * 128 + lane * 4;
            const float4 v = load_values(row, masks, settings.mask, first, vocab_size);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float z = z_of(scale, element(v, i));
                const u32 own = order_key(element(v, i));
                if (!(z >= scale.lowest) || own < s.cut_key) continue;
                const u64 best = contender(settings, key, z, first + i);
                if (own == s.cut_key) {
                    ++count;
                    equal_winner = max(equal_winner, best);
                } else {
                    winner = max(winner, best);
                }
            }
        }
    }
    winner = warp_max(winner);
    equal_winner = warp_max(equal_winner);
    count = (u32)warp_sum_of(count);
    if (lane == 0) {
        winners[runs + run] = winner;
        equal_winners[runs + run] = equal_winner;
        equals[runs + run] = count;
    }
}
