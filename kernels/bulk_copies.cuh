// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Runs of bytes that the device's copy engine brings into shared memory, one instruction of one
// thread each, past the queue in which loads of activations stand (sm_90 and up).
//
// An arrival is 8 bytes of shared memory that count the bytes of a phase; its phases end in turns of
// 0 and 1.

typedef unsigned int SharedAddress;

// By the thread that copies, before it does, and before a barrier that all who wait go through.
__device__ __forceinline__ void make_arrival(SharedAddress arrival) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(arrival) : "memory");
}

__device__ __forceinline__ void publish_arrivals() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The arrival's phase ends when so many bytes have come.
__device__ __forceinline__ void expect_bytes(SharedAddress arrival, u32 num_bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(arrival), "r"(num_bytes) : "memory");
}

// Addresses and num_bytes are multiples of 16.
__device__ __forceinline__ void copy_run(SharedAddress to, const void* from, u32 num_bytes,
                                         SharedAddress arrival) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(num_bytes), "r"(arrival) : "memory");
}

// Until the phase of this parity has ended.
__device__ __forceinline__ void wait_for_arrival(SharedAddress arrival, u32 parity) {
    asm volatile("{ .reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n}" :: "r"(arrival), "r"(parity) : "memory");
}
