// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Matrix products of a warpgroup, four warps (sm_90a alone): the left operand in registers, the
// right one in shared memory. They run beside the warps that asked for them, in order: neither
// operand nor result may be touched before the wait.

// Registers and shared memory that were written before are what later products read.
__device__ __forceinline__ void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// The products since the last commit are a group.
__device__ __forceinline__ void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most PENDING of the latest groups are under way.
template <int PENDING>
__device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}

// After the wait, so that the compiler moves no use of a result in front of it.
__device__ __forceinline__ void hold_result(float (&c)[32]) {
#pragma unroll
    for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(c[i]) :: "memory");
}

// What this thread stored into shared memory is seen by products that come after a barrier.
__device__ __forceinline__ void publish_to_products() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// A right operand: rows of 64 16-bit numbers, 128 bytes, along which the products sum; its vectors
// of 16 bytes stand at SWIZZLED places, and row 0 begins at a multiple of 1,024 bytes. The numbers
// from 16 s on are those of the operand plus 2 s. Fields, in units of 16 bytes: the start; 1,024
// bytes from 8 rows to the next 8; what swaps vectors about (1: by the row's last three bits).
#define SWIZZLED(row, vector) ((vector) ^ (row) & 7)

__device__ __forceinline__ u64 product_operand(const void* tile) {
    const u64 start = (u32)__cvta_generic_to_shared(tile) >> 4;
    return start | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// c (64 x 64, float32) = a (64 x 16) b^T (64 rows x 16), plus c where `add`. Warp w of the four
// has rows 16 w and up; lane 4 g + t of it holds a as for mma_bf16, and in c[4 j + i] row
// g + 8 (i / 2), column 8 j + 2 t + i % 2.
#define PRODUCT_OF(kind)                                                                         \
    asm volatile("{ .reg .pred p;\n setp.ne.b32 p, %37, 0;\n"                                    \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." kind "." kind " "                          \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "      \
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"                                              \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),    \
          "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]),             \
          "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]), "+f"(c[18]),          \
          "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]),          \
          "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]),          \
          "+f"(c[31])                                                                            \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add))

__device__ __forceinline__ void product_f16(float (&c)[32], const u32 (&a)[4], u64 b, bool add) {
    PRODUCT_OF("f16");
}

__device__ __forceinline__ void product_bf16(float (&c)[32], const u32 (&a)[4], u64 b, bool add) {
    PRODUCT_OF("bf16");
}
