// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// What sample.cu and sample_search.cu compute one id at a time with: the settings of a row, the
// arithmetic of ops/sample.py, the total order of ids, and what one launch leaves for the next.

#define NAN_KEY 0xFFFFFFFFu
#define PLUS_INFINITY_KEY 0xFF800000u
#define MINUS_INFINITY_KEY 0x007FFFFFu

struct Settings {
    double top_p;
    u64 seed;
    float temperature, min_p, repetition, presence, frequency;
    int top_k, choice, position;
    int bias[2], suppress[2], seen[2], counted[2];   // first entry and end of each list
    int mask, turn;                                  // row of masks, -1: none; of the results
};

#define RESULT_TURNS 4                   // steps whose tokens the host's memory holds
#define RESULT_ROWS 16                   // of a step

// ---- rows whose cuts are searched for over all blocks (sample_search.cu) -----------------------

#define MAX_FAST_K 256                   // top-k that sample_pick takes alone
#define SEARCH_STAGES 6                  // three digits of top-k's cut, three of top-p's
#define SEARCH_BINS 2048

// What a stage begins with; slot SEARCH_STAGES of a row is the cut: ids above cut_key are kept,
// and the first cut_count ids of those at it.
struct Search {
    u64 goal;                            // weight still wanted of the keys that begin as prefix
    u64 extra;                           // mass at top-k's cut that is not kept
    u32 prefix, found;                   // found 0: all together do not reach the goal
    u32 cut_key, cut_count;
    u32 top_key, unused;                 // top_key: of the largest value
};

__device__ __forceinline__ bool searches_count(const Settings& s) {
    return s.temperature != 0.0f && s.top_k > MAX_FAST_K;
}

__device__ __forceinline__ bool searches_mass(const Settings& s) {
    return s.temperature != 0.0f && s.top_p < 1.0 && (s.top_k == 0 || s.top_k > MAX_FAST_K);
}

__device__ __forceinline__ u64 mass_limit(double top_p, u64 total) {
    // the first id is always kept: its mass is 2^40, so a limit of 1 keeps it alone
    return max(__double2ull_rz(__dmul_rn(top_p, __ull2double_rn(total))), 1ull);
}

// ---- the twin's arithmetic ---------------------------------------------------------------------

__device__ __forceinline__ u64 mix(u64 x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

#define GOLDEN 0x9E3779B97F4A7C15ull

struct NoiseKey {
    u64 first, second;
};

__device__ __forceinline__ NoiseKey noise_key(const Settings& s) {
    u64 state = mix(s.seed + GOLDEN);
    state = mix(state ^ ((u64)(u32)s.choice << 32 | (u32)s.position));
    return {mix(state + GOLDEN), mix(state + 2 * GOLDEN)};
}

__device__ __forceinline__ u64 noise_bits(const NoiseKey& key, int id) {
    u64 x = (u64)id * GOLDEN + key.first;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull ^ key.second;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}

// p * x + c in two roundings
__device__ __forceinline__ float horner(float p, float x, double c) {
    return __fadd_rn(__fmul_rn(p, x), (float)c);
}

__device__ __forceinline__ float two_atanh(float s) {
    const float q = __fmul_rn(s, s);
    float p = (float)(2.0 / 13.0);
    p = horner(p, q, 2.0 / 11.0);
    p = horner(p, q, 2.0 / 9.0);
    p = horner(p, q, 2.0 / 7.0);
    p = horner(p, q, 2.0 / 5.0);
    p = horner(p, q, 2.0 / 3.0);
    return __fadd_rn(__fadd_rn(s, s), __fmul_rn(__fmul_rn(s, q), p));
}

__device__ __forceinline__ float fixed_log(float x) {
    const int raw = __float_as_int(x);
    const int exponent = (raw - 0x3F3504F3) >> 23;
    const float m = __int_as_float(raw - (exponent << 23));
    const float e = __int2float_rn(exponent);
    const float log_m = two_atanh(__fdiv_rn(__fsub_rn(m, 1.0f), __fadd_rn(m, 1.0f)));
    return __fadd_rn(__fmul_rn(e, 0.693359375f),
                     __fadd_rn(log_m, __fmul_rn(e, (float)-2.12194440e-4)));
}

__device__ __forceinline__ float fixed_exp(float z) {
    if (!(z >= -28.0f)) return 0.0f;
    const float n = rintf(__fmul_rn(z, (float)1.44269504));
    const float r = __fsub_rn(__fsub_rn(z, __fmul_rn(n, 0.693359375f)),
                              __fmul_rn(n, (float)-2.12194440e-4));
    float p = (float)(1.0 / 5040.0);
    p = horner(p, r, 1.0 / 720.0);
    p = horner(p, r, 1.0 / 120.0);
    p = horner(p, r, 1.0 / 24.0);
    p = horner(p, r, 1.0 / 6.0);
    p = horner(p, r, 0.5);
    p = horner(p, r, 1.0);
    p = horner(p, r, 1.0);
    return __fmul_rn(p, __int_as_float(((int)n + 127) << 23));
}

__device__ __forceinline__ float gumbel(u64 bits) {
    const bool upper = bits >> 63;
    const float x = __fmul_rn(__ull2float_rn((upper ? ~bits : bits) | 1), 5.421010862427522e-20f);
    const float exponential = upper ? -fixed_log(x) : two_atanh(__fdiv_rn(x, __fsub_rn(2.0f, x)));
    return -fixed_log(exponential);
}

__device__ __forceinline__ u64 mass_of(float z) {
    return __float2ull_rz(__fmul_rn(fixed_exp(z), 1099511627776.0f));    // 2^40
}

// ---- values, keys and the total order ----------------------------------------------------------

// Order of floats as order of integers, both zeros alike, NaN on top.
__device__ __forceinline__ u32 order_key(float x) {
    const u32 bits = __float_as_uint(__fadd_rn(x, 0.0f));
    if (!(x == x)) return NAN_KEY;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float key_value(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key);
}

// Larger value first, then lower id.
__device__ __forceinline__ u64 place(u32 key, int id) { return (u64)key << 32 | ~(u32)id; }

__device__ __forceinline__ u32 place_key(u64 place) { return (u32)(place >> 32); }

__device__ __forceinline__ int place_id(u64 place) { return (int)~(u32)place; }

// Four values from `id` on, hidden ones as minus infinity.
__device__ __forceinline__ float4 load_values(const float* logits, const u32* masks, int mask,
                                              int id, int vocab_size) {
    const float hidden = __uint_as_float(0xFF800000u);
    if (id >= vocab_size) return make_float4(hidden, hidden, hidden, hidden);
    const uint4 bits = load_activations(logits + id);
    float4 v = make_float4(__uint_as_float(bits.x), __uint_as_float(bits.y),
                           __uint_as_float(bits.z), __uint_as_float(bits.w));
    if (mask >= 0) {
        const u32 word = load_activation_word(masks + (u64)mask * ((vocab_size + 31) / 32)
                                              + id / 32) >> (id % 32);
        if (!(word & 1)) v.x = hidden;
        if (!(word & 2)) v.y = hidden;
        if (!(word & 4)) v.z = hidden;
        if (!(word & 8)) v.w = hidden;
    }
    return v;
}

__device__ __forceinline__ float element(const float4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ __forceinline__ u64 warp_max(u64 x) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) {
        x = max(x, __shfl_xor_sync(FULL_MASK, x, mask));
    }
    return x;
}

__device__ __forceinline__ u64 warp_sum_of(u64 x) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(FULL_MASK, x, mask);
    return x;
}

// The largest of a block of at most 32 warps; `room` holds one number per warp.
__device__ __forceinline__ u64 block_max(u64 x, u64* room, int num_warps) {
    x = warp_max(x);
    __syncthreads();                     // earlier readers of `room` are done
    const int lane = threadIdx.x % WARP;
    if (lane == 0) room[threadIdx.x / WARP] = x;
    __syncthreads();
    return warp_max(lane < num_warps ? room[lane] : 0);
}

__device__ __forceinline__ u64 block_total(u64 x, u64* room, int num_warps) {
    x = warp_sum_of(x);
    __syncthreads();
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = x;
    __syncthreads();
    u64 sum = 0;
    for (int w = 0; w < num_warps; ++w) sum += room[w];
    return sum;
}

// The largest value of a row and the first run that has it, as a place.
__device__ __forceinline__ u64 largest_of_row(const u32* largest, int num_runs, u64* room,
                                              int num_warps) {
    u64 most = 0;
    for (int run = threadIdx.x; run < num_runs; run += blockDim.x) {
        most = max(most, place(load_activation_word(largest + run), run));
    }
    return block_max(most, room, num_warps);
}

// What turns a value into z.
struct Scale {
    float top, temperature, lowest;
};

__device__ __forceinline__ Scale scale_of(const Settings& s, u32 top_key) {
    return {key_value(top_key), s.temperature, s.top_p < 1.0 ? -28.0f : -49.0f};
}

__device__ __forceinline__ float z_of(const Scale& scale, float value) {
    return __fdiv_rn(__fsub_rn(value, scale.top), scale.temperature);
}

// The place of an id's z + noise; 0 where min-p drops it.
__device__ __forceinline__ u64 contender(const Settings& s, const NoiseKey& key, float z, int id) {
    if (s.min_p > 0.0f && !(fixed_exp(z) >= s.min_p)) return 0;
    return place(order_key(__fadd_rn(z, gumbel(noise_bits(key, id)))), id);
}
