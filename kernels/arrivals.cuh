// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Warps of a launch that wait for what other blocks of the same launch write: a counter for each
// thing that is waited for, which is zero before the launch and behind it.
//
// Who writes adds itself; who reads waits for all of them, and passes; the last pass makes the
// counter zero, since it counts from `last` on to zero. Counters lie in cache lines of their own.
//
// PRECOND: all blocks of the launch are resident at once, or those that write come first.

#define ARRIVALS_APART 32                // words between two counters

// By a whole warp: what it wrote before is there for who sees the count.
__device__ __forceinline__ void add_arrivals(u32* counter, u32 count) {
    __syncwarp();
    if (threadIdx.x % WARP == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], %1;"
                     :: "l"(counter), "r"(count) : "memory");
}

__device__ __forceinline__ u32 read_arrivals(const u32* counter) {
    u32 count;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
    return count;
}

// Once behind the polls, each of which would else take what other warps have in the L1.
__device__ __forceinline__ void acquire_arrivals(const u32* counter) {
    u32 count;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
}

// By a whole warp. A count that never comes is an error of the launch, not a device that hangs: a
// poll takes half a microsecond, so this is some seconds.
__device__ __forceinline__ void wait_for_arrivals(const u32* counter, u32 all) {
    for (u32 polls = 0; read_arrivals(counter) < all; ++polls)
        if (polls > 1u << 22) asm volatile("trap;");
    acquire_arrivals(counter);
    __syncwarp();
}

// By a whole warp behind wait_for_arrivals: one of as many that pass. last: arrivals and passes
// together, less one.
__device__ __forceinline__ void pass_arrivals(u32* counter, u32 last) {
    if (threadIdx.x % WARP == 0)
        asm volatile("red.relaxed.gpu.global.inc.u32 [%0], %1;"
                     :: "l"(counter), "r"(last) : "memory");
}
