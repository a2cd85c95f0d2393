// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Blocks of one cluster (sm_90 and up): a barrier of all their threads, in two halves, and stores
// into each other's shared memory. Constant: CLUSTER, blocks of a cluster; 1: none.

#if CLUSTER > 1
#define BLOCKS_OF_CLUSTER __cluster_dims__(CLUSTER, 1, 1)
#else
#define BLOCKS_OF_CLUSTER
#endif

// What a warp stored before it arrived is seen by all that have waited.
__device__ __forceinline__ void arrive_at_cluster() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_cluster() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

typedef unsigned int PeerAddress;

// Where the block of this rank has what this one has at `own`.
__device__ __forceinline__ PeerAddress address_in_peer(float* own, int rank) {
    const u32 here = (u32)__cvta_generic_to_shared(own);
#if CLUSTER > 1
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    return there;
#else
    return here;
#endif
}

// `offset` in numbers.
__device__ __forceinline__ void store_in_peer(PeerAddress to, int offset, float value) {
#if CLUSTER > 1
    asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(to + 4 * offset), "f"(value) : "memory");
#else
    asm volatile("st.shared.f32 [%0], %1;" :: "r"(to + 4 * offset), "f"(value) : "memory");
#endif
}
