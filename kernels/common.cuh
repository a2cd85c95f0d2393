// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Pasted in front of every kernel: number types, loads, the matrix instruction, NVFP4 in fragment
// order, programmatic dependent launch. Nothing here knows a model.
//
// Constants expected by -D in files that read NVFP4 weights:
//   E2M1_HARDWARE  1: the device converts e2m1 (sm_100 and up, NVRTC 13.2 and up); 0: bit tricks

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#ifndef E2M1_HARDWARE
#define E2M1_HARDWARE 0
#endif

#define WARP 32
#define FULL_MASK 0xffffffffu

// ---- programmatic dependent launch -----------------------------------------------------------
// A kernel first requests what no earlier kernel writes (weights), then waits, then reads
// activations. Without the launch attribute, and before sm_90, both calls do nothing.

__device__ __forceinline__ void allow_next_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- loads -----------------------------------------------------------------------------------

// Weights pass through once a step and are larger than any L2: they leave it first. Not by the
// read-only path (.nc): the assembler moves such loads behind the wait for the kernel before, and
// then nothing of a step overlaps (test/unit/kernels/test_early_loads.py looks at the code).
__device__ __forceinline__ u64 streaming_policy() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ uint4 load_weights(const uint4* p, u64 policy) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p), "l"(policy));
    return v;
}

__device__ __forceinline__ u32 load_weights(const u32* p, u64 policy) {
    u32 v;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.u32 %0, [%1], %2;"
                 : "=r"(v) : "l"(p), "l"(policy));
    return v;
}

// Activations: written by the kernel before, so never through the read-only path, and volatile so
// that the compiler moves none of them before the wait. Also for constants that are to be requested
// before it: it moves none of them behind it either.
__device__ __forceinline__ uint4 load_activations(const void* p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}

__device__ __forceinline__ u32 load_activation_word(const void* p) {
    u32 v;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

// ---- bf16 ------------------------------------------------------------------------------------

__device__ __forceinline__ u16 to_bf16(float x) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

__device__ __forceinline__ float from_bf16(u16 bits) { return __uint_as_float((u32)bits << 16); }

__device__ __forceinline__ float rounded_to_bf16(float x) { return from_bf16(to_bf16(x)); }

// a * (s, s), s the lower or the upper half of `pair`; exact where the product is. Subnormals of a
// count: PTX promises them for bf16x2, and tests hold every code against its value.
#if __CUDA_ARCH__ >= 900
#define MUL_BF16X2 "mul.rn.bf16x2 %0, %1, s;\n"
#else
#define MUL_BF16X2 "fma.rn.bf16x2 %0, %1, s, %3;\n"
#endif

__device__ __forceinline__ u32 scaled_by_low(u32 a, u32 pair) {
    u32 r;
    asm("{ .reg .b16 l, h; .reg .b32 s;\n mov.b32 {l, h}, %2;\n mov.b32 s, {l, l};\n"
        MUL_BF16X2 "}" : "=r"(r) : "r"(a), "r"(pair), "r"(0x80008000u));
    return r;
}

__device__ __forceinline__ u32 scaled_by_high(u32 a, u32 pair) {
    u32 r;
    asm("{ .reg .b16 l, h; .reg .b32 s;\n mov.b32 {l, h}, %2;\n mov.b32 s, {h, h};\n"
        MUL_BF16X2 "}" : "=r"(r) : "r"(a), "r"(pair), "r"(0x80008000u));
    return r;
}

// c (16 x 8, float32) += a (16 x 16, bf16) b (16 x 8, bf16). Lane = 4 g + t holds a0: row g,
// a1: row g + 8, a2 and a3: the same rows, upper half of k; b0, b1: column g; c0, c1: row g,
// columns 2 t and 2 t + 1; c2, c3: row g + 8.
__device__ __forceinline__ void mma_bf16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                                         u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ---- NVFP4 in fragment order (ops/fragment_order.py is the definition) ----------------------
// A tile is 16 weight rows x 64 columns: 32 lanes x 4 words of codes, one word per k step of 16
// columns, and 16 words of scales. Lane 4 g + t owns rows g and g + 8 and, in each half h of 32
// columns, columns 32 h + 8 t .. + 7; step 2 h takes the first four of them, step 2 h + 1 the
// others. So a B fragment of two steps is 16 contiguous bytes of an activation row, and both
// steps lie in one group of 16 columns, whose scales stand in scale word lane / 2.

#define TILE_ROWS 16
#define TILE_COLUMNS 64
#define TILE_CODE_VECTORS 32
#define TILE_SCALE_WORDS 16

struct WeightTile {
    uint4 codes;
    u32 scales;                  // row g, row g + 8 of half 0; the same of half 1
};

__device__ __forceinline__ WeightTile load_tile(const uint4* __restrict__ codes,
                                                const u32* __restrict__ scales, u64 tile,
                                                int lane, u64 policy) {
    WeightTile w;
    w.codes = load_weights(codes + tile * TILE_CODE_VECTORS + lane, policy);
    w.scales = load_weights(scales + tile * TILE_SCALE_WORDS + (lane >> 1), policy);
    return w;
}

// Scales are stored so that shifting and adding gives bf16 numbers, subnormal e4m3 included; the
// power of two that is left over sits in row_scales.
#if E2M1_HARDWARE
#define SCALE_BASE 0x30003000u   // e4m3 * 2^-21
#else
#define SCALE_BASE 0x70007000u   // e4m3 * 2^107; the codes carry 2^-126
#endif

// The scales of rows g and g + 8 for half h of the tile, as a bf16 pair.
__device__ __forceinline__ u32 decode_scales(u32 word, int h) {
    return __byte_perm(word, 0, h ? 0x4342 : 0x4140) * 16u + SCALE_BASE;
}

// (a & mask) | (b & ~mask) in one instruction, opaque so that the front end does not spread it over
// its uses.
__device__ __forceinline__ u32 bits_of_either(u32 mask, u32 a, u32 b) {
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(r) : "r"(mask), "r"(a), "r"(b));
    return r;
}

// Two words of codes -> the A fragments of two k steps, unscaled: (a0, a1, a2, a3) of each.
__device__ __forceinline__ void decode_codes(u32 (&a)[8], u32 w0, u32 w1) {
#if E2M1_HARDWARE
    // byte r of a word holds register r, the even column in the low nibble
#define CVT4(w, i)                                                                               \
    asm("{ .reg .b8 b0, b1, b2, b3;\n mov.b32 {b0, b1, b2, b3}, %4;\n"                           \
        "cvt.rn.bf16x2.e2m1x2 %0, b0;\n cvt.rn.bf16x2.e2m1x2 %1, b1;\n"                          \
        "cvt.rn.bf16x2.e2m1x2 %2, b2;\n cvt.rn.bf16x2.e2m1x2 %3, b3;\n}"                         \
        : "=r"(a[i]), "=r"(a[i + 1]), "=r"(a[i + 2]), "=r"(a[i + 3]) : "r"(w))
    CVT4(w0, 0);
    CVT4(w1, 4);
#undef CVT4
#else
    // As bf16 bits, sign at 15 and the three others at 8..6, a code is e2m1 * 2^-126, code 1 as a
    // subnormal. Three codes of each half word stand where one rotation brings them there; the
    // fourth ones of both words share the bits left over. 9 logic operations and 7 shifts for
    // 16 codes.
    const u32 field = 0x81C081C0u, left_over = 0x06030603u;
    u32 fourth = bits_of_either(left_over, w0, w1 << 2);
    a[0] = w0 & field;
    a[1] = (w0 << 4) & field;
    a[2] = __funnelshift_l(w0, w0, 10) & field;
    a[3] = (fourth << 6) & field;
    a[4] = w1 & field;
    a[5] = (w1 << 4) & field;
    a[6] = __funnelshift_l(w1, w1, 10) & field;
    a[7] = __funnelshift_l(fourth, fourth, 12) & field;
#endif
}

// The activations of one tile: 8 columns of one row in each half.
struct ActivationTile {
    uint4 half[2];
};

// acc[h] += w x for half h of the tile, in blocks of 8 activation rows. Two accumulators halve
// the chain of dependent instructions; their order of summation is fixed.
template <int NB>
__device__ __forceinline__ void multiply_tile(float (&acc)[2][NB][4], const WeightTile& w,
                                              const ActivationTile (&x)[NB]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        u32 a[8];
        u32 scales = decode_scales(w.scales, h);
        decode_codes(a, h ? w.codes.z : w.codes.x, h ? w.codes.w : w.codes.y);
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            u32 a0 = scaled_by_low(a[4 * step], scales), a1 = scaled_by_high(a[4 * step + 1], scales);
            u32 a2 = scaled_by_low(a[4 * step + 2], scales);
            u32 a3 = scaled_by_high(a[4 * step + 3], scales);
#pragma unroll
            for (int m = 0; m < NB; ++m) {
                const uint4& b = x[m].half[h];
                mma_bf16(acc[h][m], a0, a1, a2, a3, step ? b.z : b.x, step ? b.w : b.y);
            }
        }
    }
}

// This lane's part of one tile of activation rows: rows[m] points at its row of block m, 8 t columns
// in, or is null where there is no such row. `columns` is M, a multiple of 8.
template <int NB>
__device__ __forceinline__ void load_activation_tile(ActivationTile (&x)[NB],
                                                     const u16* const (&rows)[NB], int t,
                                                     int column_tile, int columns) {
#pragma unroll
    for (int m = 0; m < NB; ++m) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int column = column_tile * TILE_COLUMNS + 32 * h;
            x[m].half[h] = make_uint4(0, 0, 0, 0);
            if (rows[m] && (columns % TILE_COLUMNS == 0 || column + 8 * t < columns))
                x[m].half[h] = load_activations(rows[m] + column);
        }
    }
}

// ---- partial results of the warps of a block -------------------------------------------------
// One warp's 16 x 8 result of a block m, padded so that the readers below meet no bank twice.

#define PARTIAL_SIZE (4 * (WARP + 1))

template <int NB>
__device__ __forceinline__ void store_partial(float (&partial)[NB][PARTIAL_SIZE],
                                              const float (&acc)[2][NB][4], int lane) {
#pragma unroll
    for (int m = 0; m < NB; ++m)
#pragma unroll
        for (int j = 0; j < 4; ++j)
            partial[m][j * (WARP + 1) + lane] = acc[0][m][j] + acc[1][m][j];
}

// The sum over the warps, in their order, of weight row `row` (0..15) for activation row `token`.
template <int NW, int NB>
__device__ __forceinline__ float summed(const float (&partial)[NW][NB][PARTIAL_SIZE],
                                        int row, int token) {
    int place = ((row >> 3) * 2 + (token & 1)) * (WARP + 1) + (row & 7) * 4 + ((token & 7) >> 1);
    float sum = partial[0][token >> 3][place];
#pragma unroll
    for (int w = 1; w < NW; ++w) sum += partial[w][token >> 3][place];
    return sum;
}

// ---- activation functions --------------------------------------------------------------------

__device__ __forceinline__ float gelu_tanh(float z) {
    const float root = 0.7978845608028654f;   // sqrt(2 / pi)
    return 0.5f * z * (1.0f + tanhf(root * (z + 0.044715f * z * z * z)));
}

// ---- pairs of numbers in one word, low half first ---------------------------------------------

__device__ __forceinline__ float bf16_low(u32 pair) { return __uint_as_float(pair << 16); }

__device__ __forceinline__ float bf16_high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ u32 pack_bf16(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ u32 pack_f16(float low, float high) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ float f16_low(u32 pair) {
    float x;
    asm("{ .reg .b16 l, h;\n mov.b32 {l, h}, %1;\n cvt.f32.f16 %0, l;\n}" : "=f"(x) : "r"(pair));
    return x;
}

__device__ __forceinline__ float f16_high(u32 pair) {
    float x;
    asm("{ .reg .b16 l, h;\n mov.b32 {l, h}, %1;\n cvt.f32.f16 %0, h;\n}" : "=f"(x) : "r"(pair));
    return x;
}

// ---- e4m3 ------------------------------------------------------------------------------------

// The two e4m3 numbers in the low half of `pair` as f16, exact (NaN codes: unspecified).
__device__ __forceinline__ u32 e4m3_to_f16(u32 pair) {
    u32 r;
#if __CUDA_ARCH__ >= 890
    asm("{ .reg .b16 l;\n cvt.u16.u32 l, %1;\n cvt.rn.f16x2.e4m3x2 %0, l;\n}"
        : "=r"(r) : "r"(pair));
#else
    // sign, exponent and fraction one bit lower than f16 has them: value 2^-8, repaired by 2^8
    u32 bits = __byte_perm(pair, 0, 0x1404);
    bits = (bits & 0x80008000u) | ((bits & 0x7F007F00u) >> 1);
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(bits), "r"(0x5C005C00u));
#endif
    return r;
}

// The e4m3 code nearest to x, ties to even, at most 448 (no NaN code), where no instruction does it.
__device__ __forceinline__ u32 e4m3_code(float x) {
    const float size = fminf(fabsf(x), 448.0f);
    // adding 2^23 quanta rounds to the quantum: 2^-9 below 2^-6, above an eighth of the power of 2
    const int exponent = max((int)(__float_as_uint(size) >> 23) - 127, -6);
    const float magic = __uint_as_float((u32)(exponent - 3 + 23 + 127) << 23);
    const u32 count = __float_as_uint(__fadd_rn(size, magic)) & 0x7FFFFFu;   // 0 .. 16
    // at exponent -6 counts below 8 are the subnormals; elsewhere the count holds the leading 8
    const u32 code = count + ((exponent + 6) << 3);
    return (__float_as_uint(x) >> 31 << 7) | code;
}

// Two float32 as e4m3, low first, rounded as e4m3_code does.
__device__ __forceinline__ u32 pack_e4m3(float low, float high) {
#if __CUDA_ARCH__ >= 890
    u16 pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return e4m3_code(low) | e4m3_code(high) << 8;
#endif
}

__device__ __forceinline__ void mma_f16(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0,
                                        u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// ---- loads of 4, 8 or 16 bytes that are used once ----------------------------------------------

__device__ __forceinline__ void load_once(u32 (&to)[1], const void* from) {
    asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
}

__device__ __forceinline__ void load_once(u32 (&to)[2], const void* from) {
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1]) : "l"(from));
}

__device__ __forceinline__ void load_once(u32 (&to)[4], const void* from) {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "l"(from));
}

// ---- stores of 8 or 16 bytes: the front end splits some of a struct's --------------------------

__device__ __forceinline__ void store_vector(void* to, uint4 v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ __forceinline__ void store_vector(void* to, float4 v) {
    asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}

__device__ __forceinline__ void store_vector(void* to, uint2 v) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" :: "l"(to), "r"(v.x), "r"(v.y) : "memory");
}

// ---- results of other blocks of the same launch, from the L2 cache -----------------------------
// Volatile like all loads of what a kernel wrote: the intrinsics for this may move before a wait.

__device__ __forceinline__ u32 load_result(const u32* from) {
    u32 x;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

__device__ __forceinline__ float load_result(const float* from) {
    float x;
    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(x) : "l"(from) : "memory");
    return x;
}

__device__ __forceinline__ float2 load_result(const float2* from) {
    float2 x;
    asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];"
                 : "=f"(x.x), "=f"(x.y) : "l"(from) : "memory");
    return x;
}

__device__ __forceinline__ float4 load_result(const float4* from) {
    float4 x;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from) : "memory");
    return x;
}

// ---- functions and sums ------------------------------------------------------------------------

__device__ __forceinline__ float exp2_fast(float x) {      // 2 ulp
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The sum over a warp, the same bits in all lanes: each step adds two equal trees.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int mask = WARP / 2; mask > 0; mask /= 2) x += __shfl_xor_sync(FULL_MASK, x, mask);
    return x;
}

// The sum over a block of `num_warps` warps, the same bits in all threads: warps in ascending
// order. `room` holds one number per warp and serves one sum of a kernel.
__device__ __forceinline__ float block_sum(float x, float* room, int num_warps) {
    x = warp_sum(x);
    if (threadIdx.x % WARP == 0) room[threadIdx.x / WARP] = x;
    __syncthreads();
    float sum = 0.0f;
    for (int w = 0; w < num_warps; ++w) sum += room[w];
    return sum;
}
