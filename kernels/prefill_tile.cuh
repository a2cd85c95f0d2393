// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of prompt rows share: asynchronous copies into shared memory, and 8 x 8
// matrices that are transposed on their way into registers.

// 16 bytes into shared memory, zeros where not `real` (then nothing is read). The copies of a
// thread since its last commit are a group; a barrier must follow the wait before others read.
__device__ __forceinline__ void copy_async(void* to, const void* from, bool real) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(real ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most PENDING of this thread's latest groups are under way.
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}

// Four 8 x 8 matrices of 16-bit numbers; lane i points at row i % 8 of matrix i / 8. Lane
// 4 g + t gets rows 2 t and 2 t + 1 of column g of matrix j in m[j], low half first.
__device__ __forceinline__ void load_transposed(u32 (&m)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
