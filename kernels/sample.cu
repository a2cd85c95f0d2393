// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// sample: one token id per row of logits, the same one as ops/sample.py's sample_row, bit for bit:
//   z = (value - largest) / temperature; token = argmax of z + gumbel(seed, choice, position, id)
//   over what top-k, top-p and min-p leave; temperature 0: the largest value. Equals: lowest id.
// Launches, in this order; those that no row of a step needs are left out:
//   sample_adjust  bias, suppressed ids, penalties, in place
//   sample_max     the largest value of every 256 ids; clears the bins of sample_search
//   sample_spread  rows without top-k and top-p: the winner of every 256 ids
//   sample_search.cu  rows with top-p alone or top-k above 256: their cuts, and winners of 256 ids
//   sample_pick    the token
//
// tokens      (R) i32; -1: a logit is NaN, -2: every id is masked, -3: a logit is infinite
// results     null, or (RESULT_TURNS, RESULT_ROWS) i32 in memory of the host: the tokens again, at
//             the record's turn
// control     null, or the step's own inputs, which become those of the step after it: (7,
//             RESULT_ROWS) i32, the rows' token ids, sequences (-1: padding) and positions, and
//             (RESULT_ROWS, 4) spans of one row each; records get the next position and turn
// logits      (R, V) f32, changed in place by sample_adjust
// rows        (R) records of 88 bytes (struct Settings); sample_pick may advance them, see there
// ids, values (list entries) i32, f32: lists of the rows; no list holds an id twice
// masks       (M, ceil(V / 32)) u32: bit id % 32 of word id / 32 allows an id
// largest     (R, RUNS) u32, scratch as all below; RUNS = ceil(V / 256)
// equals      (R, RUNS) u32: ids of a run at the cut's key
// winners     (2, R, RUNS) u64: the best of a run; the best of those at the cut's key
// bins        (R, 6, 2048) u64; states (R, 7) struct Search
//
// Every float operation is one IEEE operation that rounds on its own, as in the twin; masses are
// integers, so their sums have no order. atomicAdd adds such integers, counts, and gives out the
// places of a list whose order decides nothing.
//
// Bytes moved: 4 R V once, V / 256 words a few times. Bound by latency: with top-k sample_pick
// looks only at the runs that can hold one of the ids. Where more than 1,024 ids may be among the
// top-k (equal values, or all large ones in few runs) it reads the row up to 18 times, one block
// alone (slow and exact).
//
// PRECOND: V a multiple of 4; logits 16-byte aligned; temperature 0 or a normal float; with control
// every launch of the step before sample_pick, and one row of each sequence.
// Constants: none.

#include "sample_math.cuh"

#define RUN 256                          // ids whose largest value is kept
#define MAX_CANDIDATES 1024
#define PICK_THREADS 1024
#define PICK_WARPS (PICK_THREADS / WARP)

extern "C" __global__ void __launch_bounds__(256)
sample_adjust(float* logits, const Settings* rows, const int* ids, const float* values,
              int vocab_size) {
    allow_next_kernel();
    wait_for_previous_kernel();
    const Settings s = rows[blockIdx.x];
    float* row = logits + (u64)blockIdx.x * vocab_size;
    for (int i = s.bias[0] + threadIdx.x; i < s.bias[1]; i += 256) {
        row[ids[i]] = __fadd_rn(row[ids[i]], values[i]);
    }
    __syncthreads();
    for (int i = s.suppress[0] + threadIdx.x; i < s.suppress[1]; i += 256) {
        row[ids[i]] = __uint_as_float(0xFF800000u);
    }
    __syncthreads();
    for (int i = s.seen[0] + threadIdx.x; i < s.seen[1]; i += 256) {
        const float x = row[ids[i]];
        row[ids[i]] = x > 0.0f ? __fdiv_rn(x, s.repetition) : __fmul_rn(x, s.repetition);
    }
    __syncthreads();
    for (int i = s.counted[0] + threadIdx.x; i < s.counted[1]; i += 256) {
        const float x = __fsub_rn(row[ids[i]], __fmul_rn(values[i], s.frequency));
        row[ids[i]] = __fsub_rn(x, s.presence);
    }
}

// Grid: (ceil(V / 2048), R); a warp takes one run.
extern "C" __global__ void __launch_bounds__(256)
sample_max(u32* __restrict__ largest, u64* __restrict__ bins, const float* logits,
           const Settings* rows, const u32* masks, int vocab_size, int num_runs) {
    const int run = blockIdx.x * 8 + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    allow_next_kernel();
    wait_for_previous_kernel();
    const Settings s = rows[blockIdx.y];
    if (searches_count(s) || searches_mass(s)) {
        u64* own = bins + (u64)blockIdx.y * SEARCH_STAGES * SEARCH_BINS;
        for (int i = blockIdx.x * 256 + threadIdx.x; i < SEARCH_STAGES * SEARCH_BINS;
             i += gridDim.x * 256) {
            own[i] = 0;
        }
    }
    if (run >= num_runs) return;
    const float* row = logits + (u64)blockIdx.y * vocab_size;
    const int mask = s.mask;
    u32 most = 0;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
        const float4 v = load_values(row, masks, mask, run * RUN + part * 128 + lane * 4,
                                     vocab_size);
#pragma unroll
        for (int i = 0; i < 4; ++i) most = max(most, order_key(element(v, i)));
    }
    most = __reduce_max_sync(FULL_MASK, most);
    if (lane == 0) largest[(u64)blockIdx.y * num_runs + run] = most;
}

// Grid: (ceil(V / 2048), R); a warp takes one run.
extern "C" __global__ void __launch_bounds__(256)
sample_spread(u64* __restrict__ winners, const u32* largest, const float* logits,
              const Settings* rows, const u32* masks, int vocab_size, int num_runs) {
    __shared__ u64 room[8];
    const int run = blockIdx.x * 8 + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    allow_next_kernel();
    wait_for_previous_kernel();
    const Settings s = rows[blockIdx.y];
    if (s.temperature == 0.0f || s.top_k > 0 || s.top_p < 1.0) return;
    const u32* row_largest = largest + (u64)blockIdx.y * num_runs;
    const u32 top_key = place_key(largest_of_row(row_largest, num_runs, room, 8));
    if (top_key <= MINUS_INFINITY_KEY || top_key >= PLUS_INFINITY_KEY || run >= num_runs) return;
    const Scale scale = scale_of(s, top_key);
    const float* row = logits + (u64)blockIdx.y * vocab_size;
    u64 winner = 0;
    if (z_of(scale, key_value(load_activation_word(row_largest + run))) >= scale.lowest) {
        const NoiseKey key = noise_key(s);
#pragma unroll
        for (int part = 0; part < 2; ++part) {
            const int first = run * RUN + part * 128 + lane * 4;
            const float4 v = load_values(row, masks, s.mask, first, vocab_size);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float z = z_of(scale, element(v, i));
                if (z >= scale.lowest) winner = max(winner, contender(s, key, z, first + i));
            }
        }
    }
    winner = warp_max(winner);
    if (lane == 0) winners[(u64)blockIdx.y * num_runs + run] = winner;
}

struct Pick {
    const float* row;
    const u32* masks;
    const u32* largest;
    int vocab_size, num_runs;
    Settings s;
    Scale scale;
    NoiseKey key;
};

// The lowest id that has the largest value. top: that value's key, and the first run that has it.
__device__ __forceinline__ int pick_largest(const Pick& p, u64 top, u64* room) {
    const int first = place_id(top) * RUN + threadIdx.x * 4;
    const u32 top_key = place_key(top);
    u64 found = 0;
    if (threadIdx.x < RUN / 4) {
        const float4 v = load_values(p.row, p.masks, p.s.mask, first, p.vocab_size);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (order_key(element(v, i)) == top_key) found = max(found, place(1, first + i));
        }
    }
    return place_id(block_max(found, room, PICK_WARPS));
}

// The largest key that at least `count` runs reach; 1 if there are fewer runs.
__device__ __forceinline__ u32 run_threshold(const Pick& p, int count) {
    const u32 own = threadIdx.x < p.num_runs ? load_activation_word(p.largest + threadIdx.x) : 0;
    u32 threshold = 0;
    for (int bit = 31; bit >= 0; --bit) {
        const u32 trial = threshold | 1u << bit;
        int reached = __syncthreads_count(own >= trial);
        for (int base = PICK_THREADS; base < p.num_runs; base += PICK_THREADS) {
            const int run = base + threadIdx.x;
            reached += __syncthreads_count(run < p.num_runs
                                           && load_activation_word(p.largest + run) >= trial);
        }
        if (reached >= count) threshold = trial;
    }
    return max(threshold, 1u);
}

struct Candidates {
    u32 keys[MAX_CANDIDATES];
    int ids[MAX_CANDIDATES];
    u64 masses[MAX_CANDIDATES];
    u64 before[MAX_CANDIDATES];          // rank << RANK_SHIFT | mass of those before it
    int count;
};

#define RANK_SHIFT 52                    // 1,024 masses of 2^40 are less

// The ids of one run whose key reaches the threshold and whose z counts, by one warp.
__device__ __forceinline__ void collect_run(Candidates& c, const Pick& p, u32 threshold, int run,
                                            int lane) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
        const int first = run * RUN + part * 128 + lane * 4;
        const float4 v = load_values(p.row, p.masks, p.s.mask, first, p.vocab_size);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u32 key = order_key(element(v, i));
            const float z = z_of(p.scale, element(v, i));
            if (key < threshold || !(z >= p.scale.lowest)) continue;
            const int slot = atomicAdd(&c.count, 1);
            if (slot >= MAX_CANDIDATES) continue;
            c.keys[slot] = key;
            c.ids[slot] = first + i;
            c.masses[slot] = p.s.top_p < 1.0 ? mass_of(z) : 0;
        }
    }
}

// The same for all runs; warp w looks at runs w, w + 32, ... More than fit are only counted.
__device__ __forceinline__ void collect(Candidates& c, const Pick& p, u32 threshold) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (threadIdx.x == 0) c.count = 0;
    __syncthreads();
    for (int base = warp; base < p.num_runs; base += PICK_THREADS) {
        const int run = base + lane * PICK_WARPS;
        u32 wanted = __ballot_sync(FULL_MASK, run < p.num_runs
                                   && load_activation_word(p.largest + run) >= threshold);
        for (; wanted != 0; wanted &= wanted - 1) {
            collect_run(c, p, threshold, base + (__ffs(wanted) - 1) * PICK_WARPS, lane);
        }
    }
    __syncthreads();
}

// Fast path: the candidates hold all that can be kept. A warp ranks one of them at a time. -1:
// there are too many.
__device__ __forceinline__ int pick_candidate(Candidates& c, const Pick& p, u64* room) {
    if (c.count > MAX_CANDIDATES) return -1;
    const int lane = threadIdx.x % WARP;
    for (int ranked = threadIdx.x / WARP; ranked < c.count; ranked += PICK_WARPS) {
        const u64 own = place(c.keys[ranked], c.ids[ranked]);
        u64 before = 0;
        for (int i = lane; i < c.count; i += WARP) {
            if (place(c.keys[i], c.ids[i]) > own) before += (1ull << RANK_SHIFT) + c.masses[i];
        }
        before = warp_sum_of(before);
        if (lane == 0) c.before[ranked] = before;
    }
    __syncthreads();
    const int mine = threadIdx.x;
    const u64 before = mine < c.count ? c.before[mine] : 0;
    bool kept = mine < c.count && (int)(before >> RANK_SHIFT) < p.s.top_k;
    if (p.s.top_p < 1.0) {
        const u64 found = block_total(kept ? c.masses[mine] : 0, room, PICK_WARPS);
        kept = kept && (before & ((1ull << RANK_SHIFT) - 1)) < mass_limit(p.s.top_p, found);
    }
    u64 best = 0;
    if (kept) best = contender(p.s, p.key, z_of(p.scale, key_value(c.keys[mine])), c.ids[mine]);
    return place_id(block_max(best, room, PICK_WARPS));
}

// Calls f(place, z) for the ids of the row that count and lie at `cut` or before it.
template <typename F>
__device__ __forceinline__ void for_each(const Pick& p, u64 cut, F f) {
    for (int first = threadIdx.x * 4; first < p.vocab_size; first += PICK_THREADS * 4) {
        const float4 v = load_values(p.row, p.masks, p.s.mask, first, p.vocab_size);
#pragma unroll 1
        for (int i = 0; i < 4; ++i) {
            const float z = z_of(p.scale, element(v, i));
            const u64 at = place(order_key(element(v, i)), first + i);
            if (z >= p.scale.lowest && at >= cut) f(at, z);
        }
    }
}

// The cut in the total order at which the weights, added from the largest value down, reach
// `goal`: ids at it or before it are kept. Weights: 1, or the mass. 0 if all together do not.
__device__ __forceinline__ u64 cut_at(const Pick& p, u64 cut, u64 goal, bool by_mass, u64* bins) {
    u64 prefix = 0, above = 0;           // decided digits of the place; weight before them
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int bin = threadIdx.x; bin < 257; bin += PICK_THREADS) bins[bin] = 0;
        __syncthreads();
        for_each(p, cut, [&](u64 at, float z) {
            if (shift < 56 && at >> (shift + 8) != prefix) return;
            atomicAdd(bins + (at >> shift & 255), by_mass ? mass_of(z) : 1ull);
        });
        __syncthreads();
        if (threadIdx.x == 0) {
            u64 sum = above;
            int bin = 255;
            while (bin >= 0 && sum + bins[bin] < goal) sum += bins[bin--];
            bins[256] = bin >= 0 ? (u64)bin : ~0ull;
            bins[0] = sum;
        }
        __syncthreads();
        const u64 bin = bins[256];
        above = bins[0];
        __syncthreads();
        if (bin == ~0ull) return 0;
        prefix = prefix << 8 | bin;
    }
    return prefix;
}

// Slow path, for any setting: cuts found digit by digit over the whole row.
__device__ __forceinline__ int pick_slowly(const Pick& p, u64* bins, u64* room) {
    u64 cut = 0, best = 0;
    if (p.s.top_k > 0) cut = cut_at(p, cut, p.s.top_k, false, bins);
    if (p.s.top_p < 1.0) {
        u64 mass = 0;
        for_each(p, cut, [&](u64, float z) { mass += mass_of(z); });
        const u64 limit = mass_limit(p.s.top_p, block_total(mass, room, PICK_WARPS));
        cut = max(cut, cut_at(p, cut, limit, true, bins));
    }
    for_each(p, cut, [&](u64 at, float z) {
        best = max(best, contender(p.s, p.key, z, place_id(at)));
    });
    return place_id(block_max(best, room, PICK_WARPS));
}

// Rows whose cut sample_search found: the best of what lies above it, and of as many ids at its key
// as are kept, the lowest ones. equals[run] of them are in a run; equal_winners[run] is the best.
__device__ __forceinline__ int pick_found(const Pick& p, const Search& cut, const u32* equals,
                                          const u64* winners, const u64* equal_winners,
                                          u64* room) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    u64 best = 0, before = 0;            // ids at the cut's key in the runs before
#pragma unroll 1
    for (int base = 0; base < p.num_runs; base += PICK_THREADS) {
        const int run = base + threadIdx.x;
        const u64 own = run < p.num_runs ? load_activation_word(equals + run) : 0;
        if (run < p.num_runs) best = max(best, winners[run]);
        u64 upto = own;                  // inclusive sum over the block
#pragma unroll
        for (int step = 1; step < WARP; step *= 2) {
            const u64 other = __shfl_up_sync(FULL_MASK, upto, step);
            if (lane >= step) upto += other;
        }
        __syncthreads();
        if (lane == WARP - 1) room[warp] = upto;
        __syncthreads();
        u64 total = 0;
#pragma unroll 4
        for (int w = 0; w < PICK_WARPS; ++w) {
            if (w == warp) upto += before + total;
            total += room[w];
        }
        before += total;
        if (own > 0 && upto <= cut.cut_count) {
            best = max(best, equal_winners[run]);
        } else if (own > 0 && upto - own < cut.cut_count) {      // one run at most: part of it
            u64 left = cut.cut_count - (upto - own);
#pragma unroll 1
            for (int first = run * RUN; first < (run + 1) * RUN && left > 0; first += 4) {
                const float4 v = load_values(p.row, p.masks, p.s.mask, first, p.vocab_size);
#pragma unroll 1
                for (int i = 0; i < 4 && left > 0; ++i) {
                    if (order_key(element(v, i)) != cut.cut_key) continue;
                    best = max(best, contender(p.s, p.key, z_of(p.scale, element(v, i)),
                                               first + i));
                    --left;
                }
            }
        }
    }
    return place_id(block_max(best, room, PICK_WARPS));
}

// Grid: (R).
extern "C" __global__ void __launch_bounds__(PICK_THREADS)
sample_pick(int* tokens, int* results, int* control, const u32* largest, const u32* equals,
            const u64* winners, const u64* equal_winners, const Search* states,
            const float* logits, Settings* rows, const u32* masks, int vocab_size, int num_runs) {
    __shared__ u64 room[PICK_WARPS];
    __shared__ Candidates candidates;
    __shared__ u64 bins[257];
    allow_next_kernel();
    wait_for_previous_kernel();
    const u64 runs = (u64)blockIdx.x * num_runs;
    Pick p = {logits + (u64)blockIdx.x * vocab_size, masks, largest + runs, vocab_size, num_runs,
              rows[blockIdx.x]};
    const u64 top = largest_of_row(p.largest, num_runs, room, PICK_WARPS);
    const u32 top_key = place_key(top);
    int token;
    if (top_key == NAN_KEY) {
        token = -1;
    } else if (top_key <= MINUS_INFINITY_KEY) {
        token = -2;
    } else if (p.s.temperature == 0.0f) {
        token = pick_largest(p, top, room);
    } else if (top_key == PLUS_INFINITY_KEY) {
        token = -3;
    } else if (p.s.top_k == 0 && !(p.s.top_p < 1.0)) {
        u64 best = 0;
        for (int run = threadIdx.x; run < num_runs; run += PICK_THREADS) {
            best = max(best, winners[runs + run]);
        }
        token = place_id(block_max(best, room, PICK_WARPS));
    } else {
        p.scale = scale_of(p.s, top_key);
        p.key = noise_key(p.s);
        if (searches_count(p.s) || searches_mass(p.s)) {
            token = pick_found(p, states[blockIdx.x * (SEARCH_STAGES + 1) + SEARCH_STAGES],
                               equals + runs, winners + runs, equal_winners + runs, room);
        } else {
            collect(candidates, p, run_threshold(p, p.s.top_k));
            token = pick_candidate(candidates, p, room);
            if (token < 0) token = pick_slowly(p, bins, room);
        }
    }
    if (threadIdx.x != 0) return;
    const int r = blockIdx.x;
    tokens[r] = token;
    if (results) results[p.s.turn * RESULT_ROWS + r] = token;
    if (!control) return;
    if (control[RESULT_ROWS + r] >= 0) {
        control[r] = token;
        control[2 * RESULT_ROWS + r] += 1;
        control[3 * RESULT_ROWS + 4 * r + 2] += 1;
    }
    rows[r].position = p.s.position + 1;
    rows[r].turn = (p.s.turn + 1) % RESULT_TURNS;
}
