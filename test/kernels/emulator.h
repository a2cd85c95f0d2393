// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Runs the kernels' own source on a CPU, compiled as C++: one block after the other, each thread a
// fibre that runs until a barrier or a warp instruction stops it. A warp runs as far as it gets
// before the next one does; every second block runs its warps in descending order, and every
// second launch its blocks: so a missing barrier shows. Shared memory is filled with NaN patterns
// before every block. The CLUSTER blocks of a cluster run by turns, each until a barrier stops it,
// and shared memory is changed for that of the block that runs; so do all blocks of a launch whose
// blocks wait for arrivals (arrivals.cuh). What common.cuh writes in PTX is
// written here in C++. Says nothing about speed, overlap between blocks or launches, or the
// memory model; the matrix instruction adds in double precision.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("emulated_shared")))
#define __CUDA_ARCH__ 800
#ifndef CLUSTER
#define CLUSTER 1
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct uint2 { u32 x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct Dim3 { u32 x, y, z; };
static Dim3 threadIdx, blockIdx, blockDim, gridDim;

using std::max;
using std::min;

// ---- fibres ----------------------------------------------------------------------------------

namespace emulator {

constexpr size_t stack_bytes = 256 << 10;
#ifndef ARRIVALS
constexpr int most_together = CLUSTER;   // blocks that run by turns
constexpr int max_threads = CLUSTER > 4 ? 4096 : 1024;
#else
constexpr int most_together = 16;
constexpr int max_threads = 4096;
#endif

struct Barrier {
    int arrived = 0;
    u32 generation = 0;
};

struct Warp {
    Barrier barrier;
    int live = 0;
    u64 slots[2][32][8];             // what each lane hands in, for even and odd generations
};

static ucontext_t scheduler, contexts[max_threads];
static u8* stacks = nullptr;
static Warp warps[max_threads / 32];
static Barrier blocks[most_together], cluster;
static int count_votes[2];
static int num_live[most_together], cluster_live;
static int current, rank;                // the fibre, and the block in its cluster, that run
static std::vector<u8> memories[most_together];        // shared memory of the blocks that do not run
static Barrier pairs[most_together][17]; // of two warps, by name
static const Barrier* held_by[max_threads];      // which a thread waits for, since which generation
static u32 since[max_threads];
static bool finished[max_threads];
static const u32* counters[max_threads]; // which a thread waits for, to be at least so much
static u32 least[max_threads];
static u32 arrived_since[max_threads];   // at the barrier of the cluster

struct Copy {
    void* to;
    const void* from;
    bool real;
    int group;
    size_t size;
};

static std::vector<Copy> copies[max_threads];
static int groups[max_threads];          // committed ones

struct Product {
    float* c;
    const u32* a;
    u64 b;
    float (*value)(u32);
    bool add;
    int group;
};

static std::vector<Product> products[max_threads];
static int product_groups[max_threads];  // committed ones

static void (*body)();

inline void yield() { swapcontext(&contexts[current], &scheduler); }

inline void arrive(Barrier& barrier, const int& expected) {
    const u32 generation = barrier.generation;
    ++barrier.arrived;
    while (barrier.generation == generation) {
        if (barrier.arrived >= expected) {
            barrier.arrived = 0;
            ++barrier.generation;
        } else {
            yield();
        }
    }
}

inline Warp& my_warp() { return warps[current / 32]; }

// Hands in `count` words, waits for the warp, and gives what all lanes handed in.
inline u64 (*exchange(const u64* words, int count))[8] {
    Warp& warp = my_warp();
    const int side = warp.barrier.generation & 1;
    for (int i = 0; i < count; ++i) warp.slots[side][threadIdx.x % 32][i] = words[i];
    arrive(warp.barrier, warp.live);
    return warp.slots[side];
}

static void run_fibre() {
    body();
    finished[current] = true;
    --num_live[rank];
    --cluster_live;
    --my_warp().live;
    swapcontext(&contexts[current], &scheduler);
}

inline bool waits(int fibre) {
    return finished[fibre] || (held_by[fibre] && since[fibre] == held_by[fibre]->generation)
        || (counters[fibre] && *counters[fibre] < least[fibre]);
}

// Runs a warp as far as it gets; whether that was anywhere.
static bool run_warp(int first, int end, int first_of_block) {
    bool ran = true, any = false;
    while (ran) {
        ran = false;
        for (int fibre = first; fibre < end; ++fibre) {
            if (waits(fibre)) continue;
            ran = any = true;
            current = fibre;
            threadIdx = {(u32)(fibre - first_of_block), 0, 0};
            swapcontext(&scheduler, &contexts[fibre]);
        }
    }
    return any;
}

// The blocks of a cluster, or one, or all; blockIdx is the first's.
static void run_together(int num_blocks, int num_threads, u8* shared, size_t shared_bytes) {
    if (stacks == nullptr) stacks = (u8*)malloc(stack_bytes * max_threads);
    const int num_warps = (num_threads + 31) / 32, stride = num_warps * 32;
    if (num_blocks > most_together || num_blocks * stride > max_threads) abort();
    cluster = Barrier();
    cluster_live = num_blocks * num_threads;
    for (Warp& warp : warps) warp.barrier = Barrier(), warp.live = 0;
    for (auto& named : pairs)
        for (Barrier& pair : named) pair = Barrier();
    for (int b = 0; b < num_blocks; ++b) {
        blocks[b] = Barrier();
        num_live[b] = num_threads;
        memset(shared, 0xFF, shared_bytes);
        if (num_blocks > 1) memories[b].assign(shared, shared + shared_bytes);
        for (int t = b * stride; t < b * stride + num_threads; ++t) {
            finished[t] = false;
            held_by[t] = nullptr;
            counters[t] = nullptr;
            copies[t].clear();
            groups[t] = 0;
            products[t].clear();
            product_groups[t] = 0;
            ++warps[t / 32].live;
            getcontext(&contexts[t]);
            contexts[t].uc_stack.ss_sp = stacks + t * stack_bytes;
            contexts[t].uc_stack.ss_size = stack_bytes;
            contexts[t].uc_link = nullptr;
            makecontext(&contexts[t], run_fibre, 0);
        }
    }
    static u32 num_clusters = 0;
    const bool backwards = num_clusters++ % 2 == 1;
    const u32 first_block = blockIdx.x;
    for (bool any = true; cluster_live > 0;) {
        if (!any) {
            fprintf(stderr, "what blocks wait for never comes\n");
            abort();
        }
        any = false;
        for (int i = 0; i < num_blocks; ++i) {
            rank = backwards ? num_blocks - 1 - i : i;
            blockIdx.x = first_block + rank;
            if (num_blocks > 1) memcpy(shared, memories[rank].data(), shared_bytes);
            for (bool ran = true; ran;) {
                ran = false;
                for (int w = 0; w < num_warps; ++w) {
                    const int first = rank * stride + (backwards ? num_warps - 1 - w : w) * 32;
                    ran |= run_warp(first, min(first + 32, rank * stride + num_threads),
                                    rank * stride);
                }
                any |= ran;
            }
            if (num_blocks > 1) memcpy(memories[rank].data(), shared, shared_bytes);
        }
    }
}

template <typename T> u64 pack(T x) {
    u64 word = 0;
    memcpy(&word, &x, sizeof x);
    return word;
}

template <typename T> T unpack(u64 word) {
    T x;
    memcpy(&x, &word, sizeof x);
    return x;
}

}  // namespace emulator

// so that the section exists also where a kernel has no shared memory
static __attribute__((section("emulated_shared"), used)) u32 some_shared_word;
extern "C" char __start_emulated_shared[], __stop_emulated_shared[];

static void run_grid(void (*body)(), const u32* grid, const u32* threads) {
    emulator::body = body;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads[0], 1, 1};
    static u32 num_launches = 0;
    const bool backwards = num_launches++ % 2 == 1;
#ifdef ARRIVALS
    const u32 together = grid[0];
#else
    const u32 together = CLUSTER;
#endif
    if (grid[0] % together != 0) abort();
    const u64 count = (u64)grid[0] * grid[1] * grid[2] / together;
    for (u64 i = 0; i < count; ++i) {
        const u64 b = (backwards ? count - 1 - i : i) * together, row = b / grid[0];
        blockIdx = {(u32)(b % grid[0]), (u32)(row % grid[1]), (u32)(row / grid[1])};
        emulator::run_together(together, threads[0], (u8*)__start_emulated_shared,
                               __stop_emulated_shared - __start_emulated_shared);
    }
}

// ---- CUDA's functions ------------------------------------------------------------------------

inline void hold(emulator::Barrier& barrier, const int& expected) {
    const int thread = emulator::current;
    emulator::held_by[thread] = &barrier;
    emulator::since[thread] = barrier.generation;
    emulator::arrive(barrier, expected);
    emulator::held_by[thread] = nullptr;
}

inline void __syncthreads() {
    hold(emulator::blocks[emulator::rank], emulator::num_live[emulator::rank]);
}

inline void pair_barrier(int pair) {
    const int two_warps = 64;
    hold(emulator::pairs[emulator::rank][pair], two_warps);
}

inline void __syncwarp() {
    emulator::arrive(emulator::my_warp().barrier, emulator::my_warp().live);
}

inline void __threadfence() {}

inline int __syncthreads_count(int vote) {
    const int side = emulator::blocks[emulator::rank].generation & 1;
    emulator::count_votes[side] += vote != 0;
    __syncthreads();
    const int count = emulator::count_votes[side];
    __syncthreads();
    emulator::count_votes[side] = 0;
    __syncthreads();
    return count;
}

template <typename T> T __shfl_sync(u32, T x, int lane) {
    const u64 word = emulator::pack(x);
    return emulator::unpack<T>(emulator::exchange(&word, 1)[lane % 32][0]);
}

template <typename T> T __shfl_xor_sync(u32, T x, int mask) {
    const u64 word = emulator::pack(x);
    return emulator::unpack<T>(emulator::exchange(&word, 1)[(threadIdx.x % 32) ^ mask][0]);
}

template <typename T> T __shfl_up_sync(u32, T x, int delta) {
    const u64 word = emulator::pack(x);
    const int lane = threadIdx.x % 32, from = lane >= delta ? lane - delta : lane;
    return emulator::unpack<T>(emulator::exchange(&word, 1)[from][0]);
}

inline u32 __ballot_sync(u32, int vote) {
    const u64 word = vote != 0;
    const auto all = emulator::exchange(&word, 1);
    u32 bits = 0;
    for (u32 lane = 0; lane < 32; ++lane) {
        if (threadIdx.x / 32 * 32 + lane < blockDim.x) bits |= (u32)(all[lane][0] & 1) << lane;
    }
    return bits;
}

inline u32 __reduce_max_sync(u32, u32 x) {
    const u64 word = x;
    const auto all = emulator::exchange(&word, 1);
    u64 most = 0;
    for (int lane = 0; lane < 32; ++lane) most = max(most, all[lane][0]);
    return (u32)most;
}

inline u32 __reduce_min_sync(u32 mask, u32 x) { return ~__reduce_max_sync(mask, ~x); }

inline int __reduce_add_sync(u32, int x) {
    const u64 word = (u32)x;
    const auto all = emulator::exchange(&word, 1);
    u64 sum = 0;
    for (int lane = 0; lane < 32; ++lane) sum += all[lane][0];
    return (int)sum;
}

inline u32 __match_any_sync(u32, int x) {
    const u64 word = (u32)x;
    const auto all = emulator::exchange(&word, 1);
    u32 bits = 0;
    for (u32 lane = 0; lane < 32; ++lane) bits |= (u32)(all[lane][0] == word) << lane;
    return bits;
}

template <typename T> T atomicAdd(T* p, T x) {
    const T old = *p;
    *p += x;
    return old;
}

template <typename T> T atomicOr(T* p, T x) {
    const T old = *p;
    *p |= x;
    return old;
}

inline u32 atomicInc(u32* p, u32 last) {
    const u32 old = *p;
    *p = old >= last ? 0 : old + 1;
    return old;
}

inline u32 take_ticket(u32* counter) { return (*counter)++; }

inline void add_arrivals(u32* counter, u32 count) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) *counter += count;
}

inline u32 read_arrivals(const u32* counter) { return *counter; }
inline void acquire_arrivals(const u32*) {}

inline void wait_for_arrivals(const u32* counter, u32 all) {
    const int thread = emulator::current;
    emulator::counters[thread] = counter;
    emulator::least[thread] = all;
    while (*counter < all) emulator::yield();
    emulator::counters[thread] = nullptr;
    __syncwarp();
}

inline void pass_arrivals(u32* counter, u32 last) {
    if (threadIdx.x % 32 == 0) *counter = *counter >= last ? 0 : *counter + 1;
}

template <typename T> T __ldcg(const T* p) { return *p; }
template <typename T> T __ldg(const T* p) { return *p; }

inline u32 __float_as_uint(float x) { return emulator::pack(x); }
inline int __float_as_int(float x) { return (int)emulator::pack(x); }
inline float __uint_as_float(u32 x) { return emulator::unpack<float>(x); }
inline float __int_as_float(int x) { return emulator::unpack<float>((u32)x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ull2double_rn(u64 x) { return (double)x; }
inline u64 __double2ull_rz(double x) { return (u64)x; }
inline float __ull2float_rn(u64 x) { return (float)x; }
inline float __ll2float_rn(long long x) { return (float)x; }
inline float __int2float_rn(int x) { return (float)x; }
inline u64 __float2ull_rz(float x) { return (u64)x; }
inline int __float2int_rn(float x) { return (int)rintf(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz((u32)x); }
inline int __popc(u32 x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline void sincospif(float x, float* s, float* c) {
    *s = (float)std::sin(M_PI * (double)x);
    *c = (float)std::cos(M_PI * (double)x);
}

inline u32 __funnelshift_l(u32 low, u32 high, int shift) {
    return (u32)(((u64)high << 32 | low) << (shift & 31) >> 32);
}

inline u32 __funnelshift_r(u32 low, u32 high, int shift) {
    return (u32)(((u64)high << 32 | low) >> (shift & 31));
}

inline u32 __byte_perm(u32 a, u32 b, u32 selector) {
    const u64 bytes = (u64)b << 32 | a;
    u32 r = 0;
    for (int i = 0; i < 4; ++i) r |= (u32)(bytes >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
    return r;
}

// ---- what common.cuh writes in PTX -----------------------------------------------------------

inline void allow_next_kernel() {}
inline void wait_for_previous_kernel() {}

inline u16 to_bf16(float x) {
    const u32 bits = __float_as_uint(x);
    if (std::isnan(x)) return 0x7FFF;
    return (u16)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

inline float value_of_f16(u32 half) {
    const int exponent = half >> 10 & 31, fraction = half & 1023;
    const float size = exponent == 31 ? (fraction ? NAN : INFINITY)
        : exponent ? std::ldexp(1024.0f + fraction, exponent - 25)
        : std::ldexp((float)fraction, -24);
    return half & 0x8000 ? -size : size;
}

inline float from_f16(u32 half) {
    static const std::vector<float> values = [] {
        std::vector<float> all(1 << 16);
        for (u32 i = 0; i < all.size(); ++i) all[i] = value_of_f16(i);
        return all;
    }();
    return values[half & 0xFFFF];
}

inline u32 to_f16(float x) {
    const u32 sign = __float_as_uint(x) >> 16 & 0x8000;
    const float size = std::fabs(x);
    if (std::isnan(x)) return 0x7FFF;
    if (size >= 65520.0f) return sign | 0x7C00;
    if (size == 0.0f) return sign;
    const int exponent = max(std::ilogb(size), -14);
    const u32 count = (u32)std::rint(std::ldexp(size, 10 - exponent));    // ties to even
    return sign | (count + ((exponent + 14) << 10));
}

inline u32 pack_bf16(float low, float high) { return (u32)to_bf16(high) << 16 | to_bf16(low); }
inline u32 pack_f16(float low, float high) {
    return to_f16(high) << 16 | to_f16(low);
}
inline float f16_low(u32 pair) { return from_f16(pair); }
inline float f16_high(u32 pair) { return from_f16(pair >> 16); }
inline float exp2_fast(float x) { return exp2f(x); }

inline u32 e4m3_to_f16(u32 pair) {
    float x[2];
    for (int i = 0; i < 2; ++i) {
        const int code = pair >> 8 * i & 0x7F, exponent = code >> 3, fraction = code & 7;
        x[i] = exponent ? std::ldexp(8.0f + fraction, exponent - 10) : std::ldexp(fraction, -9);
        if (pair >> 8 * i & 0x80) x[i] = -x[i];
    }
    return pack_f16(x[0], x[1]);
}

inline void load_once(u32 (&to)[1], const void* from) { memcpy(to, from, 4); }
inline void load_once(u32 (&to)[2], const void* from) { memcpy(to, from, 8); }
inline void load_once(u32 (&to)[4], const void* from) { memcpy(to, from, 16); }
inline void load_with_line(u32 (&to)[1], const void* from) { memcpy(to, from, 4); }
inline void load_with_line(u32 (&to)[2], const void* from) { memcpy(to, from, 8); }
inline u64 streaming_policy() { return 0; }
template <typename T> T load_weights(const T* p, u64) { return *p; }
template <typename T> T load_result(const T* from) { return *from; }
template <typename T> void store_vector(void* to, T v) { memcpy(to, &v, sizeof v); }
inline u32 load_activation_word(const void* p) { return *(const u32*)p; }
inline uint4 load_activations(const void* p) { return *(const uint4*)p; }

// Asynchronous copies happen at the last moment, in the wait, so that a missing one shows.
inline void copy_async(void* to, const void* from, bool real) {
    emulator::copies[emulator::current].push_back({to, from, real, emulator::groups[emulator::current], 16});
}

inline void copy_with_line(void* to, const void* from, bool real) { copy_async(to, from, real); }

typedef u64 SharedAddress;

inline SharedAddress shared_address(const void* p) { return (u64)p; }
inline uint4 read_vector(SharedAddress from) { return *(const uint4*)from; }
inline u32 read_word(SharedAddress from) { return *(const u32*)from; }

inline void fetch_line(const void* from) { (void)*(const volatile char*)from; }

inline void copy_weights(SharedAddress to, const void* from) {
    copy_async((void*)to, from, true);
}

inline void copy_pair(SharedAddress to, const void* from) {
    emulator::copies[emulator::current].push_back(
        {(void*)to, from, true, emulator::groups[emulator::current], 8});
}

inline void commit_copies() { ++emulator::groups[emulator::current]; }

template <int PENDING> void wait_for_copies() {
    auto& copies = emulator::copies[emulator::current];
    const int done = emulator::groups[emulator::current] - PENDING;
    size_t count = 0;
    for (; count < copies.size() && copies[count].group < done; ++count) {
        if (copies[count].real) memcpy(copies[count].to, copies[count].from, copies[count].size);
        else memset(copies[count].to, 0, copies[count].size);
    }
    copies.erase(copies.begin(), copies.begin() + count);
}

// Of cluster.cuh.
typedef u64 PeerAddress;                 // the rank in the upper 16 bits

inline void arrive_at_cluster() {
    if (CLUSTER == 1) return;
    emulator::Barrier& cluster = emulator::cluster;
    emulator::arrived_since[emulator::current] = cluster.generation;
    if (++cluster.arrived < emulator::cluster_live) return;
    cluster.arrived = 0;
    ++cluster.generation;
}

inline void enter_cluster() { arrive_at_cluster(); }

inline void wait_for_cluster() {
    if (CLUSTER == 1) return;
    const int thread = emulator::current;
    emulator::held_by[thread] = &emulator::cluster;
    emulator::since[thread] = emulator::arrived_since[thread];
    while (emulator::cluster.generation == emulator::since[thread]) emulator::yield();
    emulator::held_by[thread] = nullptr;
}

inline PeerAddress address_in_peer(float* own, int rank) { return (u64)own | (u64)rank << 48; }

inline void store_in_peer(PeerAddress to, int offset, float value) {
    const int rank = (int)(to >> 48);
    u8* own = (u8*)(to & ((u64)1 << 48) - 1) + 4 * offset;
    if (rank != emulator::rank)
        own = emulator::memories[rank].data() + (own - (u8*)__start_emulated_shared);
    memcpy(own, &value, sizeof value);
}

inline void store_in_peer(PeerAddress to, int offset, float4 v) {
    store_in_peer(to, offset, v.x), store_in_peer(to, offset + 1, v.y);
    store_in_peer(to, offset + 2, v.z), store_in_peer(to, offset + 3, v.w);
}

// A count of bytes: those that came, and those that will.
inline void open_mail(u64* mail, u32 bytes) { *mail = (u64)bytes << 32; }

inline void wait_for_mail(u64* mail) {
    const int thread = emulator::current;
    const u32* count = (const u32*)mail;
    emulator::counters[thread] = count;
    emulator::least[thread] = count[1];
    while (count[0] < count[1]) emulator::yield();
    emulator::counters[thread] = nullptr;
}

// Of handover.cuh: arrivals that a round takes, those that are left of it, and rounds so far.
inline void open_handover(u64* handover, int arrivals) {
    *handover = (u32)arrivals << 16 | (u32)arrivals;
}

inline void hand_over(u64* handover) {
    u32* left = (u32*)handover;
    if (--*left & 0xffff) return;
    *left |= *left >> 16;
    ++left[1];
}

inline void wait_for_handover(u64* handover, u32 parity) {
    const u32* rounds = (const u32*)handover + 1;
    if ((*rounds & 1) != parity) return;
    const int thread = emulator::current;
    emulator::counters[thread] = rounds;
    emulator::least[thread] = *rounds + 1;
    while (*rounds < emulator::least[thread]) emulator::yield();
    emulator::counters[thread] = nullptr;
}

template <typename T> void send_to_peer(PeerAddress to, int offset, T value, PeerAddress mail) {
    const auto place = [](PeerAddress of) {
        u8* own = (u8*)(of & ((u64)1 << 48) - 1);
        const int rank = (int)(of >> 48);
        return rank == emulator::rank ? own : emulator::memories[rank].data()
               + (own - (u8*)__start_emulated_shared);
    };
    memcpy(place(to) + 4 * offset, &value, sizeof value);
    u32* count = (u32*)place(mail);
    count[0] += sizeof value;
    if (count[0] > count[1]) abort();    // nobody waits for it
}

inline void load_transposed(u32 (&m)[4], const void* row) {
    const u64 word = (u64)row;
    const auto all = emulator::exchange(&word, 1);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int j = 0; j < 4; ++j) {
        const u16* even = (const u16*)all[8 * j + 2 * t][0];
        const u16* odd = (const u16*)all[8 * j + 2 * t + 1][0];
        m[j] = even[g] | (u32)odd[g] << 16;
    }
}

template <float (*VALUE)(u32)>
void multiply_fragments(float (&c)[4], const u32* fragment) {
    u64 words[6];
    for (int i = 0; i < 6; ++i) words[i] = fragment[i];
    const auto all = emulator::exchange(words, 6);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    for (int i = 0; i < 4; ++i) {
        const int row = g + i / 2 * 8, column = 2 * t + i % 2;
        double sum = c[i];
        for (int k = 0; k < 16; ++k) {
            const int a = (row / 8) + (k / 8) * 2, shift = k % 2 * 16;
            const u32 left = (u32)all[row % 8 * 4 + k % 8 / 2][a];
            const u32 right = (u32)all[column * 4 + k % 8 / 2][4 + k / 8];
            sum += (double)VALUE(left >> shift & 0xFFFF) * VALUE(right >> shift & 0xFFFF);
        }
        c[i] = (float)sum;
    }
}

inline float bf16_value(u32 bits) { return __uint_as_float(bits << 16); }

inline void mma_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    const u32 fragment[6] = {a0, a1, a2, a3, b0, b1};
    multiply_fragments<bf16_value>(c, fragment);
}

inline void mma_f16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    const u32 fragment[6] = {a0, a1, a2, a3, b0, b1};
    multiply_fragments<from_f16>(c, fragment);
}

// Of wgmma.cuh. Products happen at the last moment, in the wait, with what registers and shared
// memory hold then, so that a missing wait shows; each thread makes its part of the result.
namespace emulator {

// A number of a right operand: a descriptor's fields as the PTX ISA has them, K-major.
inline u16 operand_number(u64 descriptor, int row, int k) {
    const u64 start = (descriptor & 0x3FFF) << 4, between_eights = (descriptor >> 32 & 0x3FFF) << 4;
    const bool is_plain = (descriptor >> 49 & 7) == 0 && (descriptor >> 52 & 1) == 0;
    // 128 bytes are swapped about; 16 numbers are at most 96 bytes behind row 0
    if (descriptor >> 62 != 1 || !is_plain || start % 1024 > 96) abort();
    // rows of 128 bytes; vectors are swapped by bits 7 to 9 of the address
    u64 place = start + row / 8 * between_eights + row % 8 * 128 + 2 * k;
    place ^= (place >> 7 & 7) << 4;
    return *(const u16*)(__start_emulated_shared + place);
}

inline void multiply_group(const Product& product) {
    u64 words[4];
    for (int i = 0; i < 4; ++i) words[i] = product.a[i];
    const auto all = exchange(words, 4);
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float left[2][16];
    for (int half = 0; half < 2; ++half) {
        for (int k = 0; k < 16; ++k) {
            const u32 pair = (u32)all[4 * g + k % 8 / 2][half + k / 8 * 2];
            left[half][k] = product.value(pair >> k % 2 * 16 & 0xFFFF);
        }
    }
    for (int column = 2 * t; column < 64; column += column % 2 ? 7 : 1) {
        double sums[2] = {0, 0};
        for (int k = 0; k < 16; ++k) {
            const double right = product.value(operand_number(product.b, column, k));
            for (int half = 0; half < 2; ++half) sums[half] += left[half][k] * right;
        }
        for (int half = 0; half < 2; ++half) {
            float& c = product.c[column / 8 * 4 + half * 2 + column % 2];
            c = (float)(sums[half] + (product.add ? c : 0.0));
        }
    }
}

inline void product(float* c, const u32* a, u64 b, float (*value)(u32), bool add) {
    products[current].push_back({c, a, b, value, add, product_groups[current]});
}

}  // namespace emulator

inline void begin_products() {}
inline void commit_products() { ++emulator::product_groups[emulator::current]; }
inline void hold_result(float (&)[32]) {}
inline void publish_to_products() {}

template <int PENDING> void wait_for_products() {
    auto& products = emulator::products[emulator::current];
    const int done = emulator::product_groups[emulator::current] - PENDING;
    size_t count = 0;
    for (; count < products.size() && products[count].group < done; ++count)
        emulator::multiply_group(products[count]);
    products.erase(products.begin(), products.begin() + count);
}

inline u64 __cvta_generic_to_shared(const void* p) {
    return (u64)((const char*)p - __start_emulated_shared);
}

inline void product_f16(float (&c)[32], const u32 (&a)[4], u64 b, bool add) {
    emulator::product(c, a, b, from_f16, add);
}

inline void product_bf16(float (&c)[32], const u32 (&a)[4], u64 b, bool add) {
    emulator::product(c, a, b, bf16_value, add);
}

inline u32 scaled_bf16(u32 a, float s) {
    return pack_bf16(bf16_value(a & 0xFFFF) * s, bf16_value(a >> 16) * s);
}

inline u32 scaled_by_low(u32 a, u32 pair) { return scaled_bf16(a, bf16_value(pair & 0xFFFF)); }
inline u32 scaled_by_high(u32 a, u32 pair) { return scaled_bf16(a, bf16_value(pair >> 16)); }
inline u32 bits_of_either(u32 mask, u32 a, u32 b) { return (a & mask) | (b & ~mask); }

inline u32 times_power_plus(u32 a, int e, u32 b) {
    const float factor = std::ldexp(1.0f, e);
    return pack_bf16(bf16_value(a & 0xFFFF) * factor + bf16_value(b & 0xFFFF),
                     bf16_value(a >> 16) * factor + bf16_value(b >> 16));
}
