// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Warps of a block that hand places of shared memory to each other: who arrives does not
// wait, and who waits waits for those alone that hand over.

// By one thread, before a barrier of the block: each round takes so many arrivals.
__device__ __forceinline__ void open_handover(u64* handover, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;"
                 :: "r"((u32)__cvta_generic_to_shared(handover)), "r"(arrivals) : "memory");
}

// By one lane, behind a __syncwarp: what its warp stored, or has read, is handed over.
__device__ __forceinline__ void hand_over(u64* handover) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];"
                 :: "r"((u32)__cvta_generic_to_shared(handover)) : "memory");
}

// By all lanes: the round of this parity is complete; the one before the first counts as odd.
__device__ __forceinline__ void wait_for_handover(u64* handover, u32 parity) {
#if __CUDA_ARCH__ >= 900
#define TRY_WAIT "mbarrier.try_wait.parity.shared::cta.b64"
#else
#define TRY_WAIT "mbarrier.test_wait.parity.shared.b64"
#endif
    const u32 at = (u32)__cvta_generic_to_shared(handover);
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p;\n"
                     TRY_WAIT " p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at), "r"(parity) : "memory");
#undef TRY_WAIT
}
