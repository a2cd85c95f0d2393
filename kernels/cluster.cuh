// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Blocks of one cluster (sm_90 and up): a barrier of all their threads, in two halves, and stores
// into each other's shared memory, which a barrier orders or a count of bytes. Constant: CLUSTER,
// blocks of a cluster; 1: none.

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

// The same without what was stored before: for a block that only is there, or has read all it will.
// A release waits for the memory, some hundred cycles even where nothing is under way.
__device__ __forceinline__ void enter_cluster() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
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

// ---- numbers that peers send, counted by bytes -------------------------------------------------
// Nobody waits for the memory, as a barrier's release would, nor for peers that send nothing.

// By one thread, before it enters the cluster: so many bytes will come here, once.
__device__ __forceinline__ void open_mail(u64* mail, u32 bytes) {
#if CLUSTER > 1
    const u32 at = (u32)__cvta_generic_to_shared(mail);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n"
                 "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
                 "fence.mbarrier_init.release.cluster;" :: "r"(at), "r"(bytes) : "memory");
#endif
}

// By any thread, once: all of it is here.
__device__ __forceinline__ void wait_for_mail(u64* mail) {
#if CLUSTER > 1
    const u32 at = (u32)__cvta_generic_to_shared(mail);
    u32 done = 0;
    while (!done)
        asm volatile("{ .reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n"
                     "selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(at) : "memory");
#endif
}

// `offset` in numbers; `mail` is the peer's.
__device__ __forceinline__ void send_to_peer(PeerAddress to, int offset, float v,
                                             PeerAddress mail) {
#if CLUSTER > 1
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
                 :: "r"(to + 4 * offset), "f"(v), "r"(mail) : "memory");
#endif
}

__device__ __forceinline__ void send_to_peer(PeerAddress to, int offset, float2 v,
                                             PeerAddress mail) {
#if CLUSTER > 1
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 "
                 "[%0], {%1, %2}, [%3];"
                 :: "r"(to + 4 * offset), "f"(v.x), "f"(v.y), "r"(mail) : "memory");
#endif
}

__device__ __forceinline__ void send_to_peer(PeerAddress to, int offset, float4 v,
                                             PeerAddress mail) {
#if CLUSTER > 1
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                 "[%0], {%1, %2, %3, %4}, [%5];"
                 :: "r"(to + 4 * offset), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(mail)
                 : "memory");
#endif
}
