// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// MLX affine codes in fragment order (ops/affine_order.py is the definition): w = scale q + bias,
// one scale and bias for GROUP columns of a row.
// A tile is 16 weight rows x 64 columns, a lane's part of it as in NVFP4's order: rows g and g + 8
// and, in each half h, columns 32 h + 8 t .. + 7, in eight registers of two codes. Register p of
// both halves has LOW_BITS bits at places p LOW_BITS of the lane's low plane, counted in the lower
// halves of its words, even column there and odd column 16 bits higher, and the bits above them
// in the high plane alike. Scales: a word {scale 2^SHIFTED, bias} for row g and one for row g + 8,
// by group.
//
// Constants: BITS (2, 3, 4, 5, 6, 8), GROUP (32, 64, 128).

#define HIGH_BITS (BITS == 6 ? 2 : BITS % 2)
#define LOW_BITS (BITS - HIGH_BITS)
#define LOW_PAIRS (16 / LOW_BITS)        // of a word
#define HIGH_PAIRS (HIGH_BITS == 2 ? 8 : 16)
#define TILE_WORDS (WARP * BITS)
#define TILE_GROUPS (GROUP == 32 ? 2 : 1)
#define TILES_PER_SCALE (GROUP == 128 ? 2 : 1)
#define TILE_SCALES (16 * TILE_GROUPS)   // words
// Codes are decoded to q 2^-SHIFTED, upper: those of row g + 8; stored scales have that power of two
// in them. With one plane it is what a code's bits are in bf16 times 2^64, so that a row times 2^64
// takes them as they are; with two, so little that no factor below is too large for bf16.
#define SHIFTED(upper) (HIGH_BITS ? 6 + LOW_BITS : 69 - ((upper) ? RAW_UPPER : 0))
#define RAW_UPPER (LOW_BITS % 8)         // the place of row g + 8's codes, counted from row g's
#define RAW_SECOND (LOW_BITS == 2 ? 4 : 0)       // and of the second pair's from the first's

struct AffineTile {
    u32 low[LOW_BITS], high[HIGH_BITS ? HIGH_BITS : 1];
    u32 scales[2 * TILE_GROUPS];
};

// From shared memory.
__device__ __forceinline__ void read_words(u32 (&to)[1], const u8* from, int lane) {
    to[0] = ((const u32*)from)[lane];
}

__device__ __forceinline__ void read_words(u32 (&to)[2], const u8* from, int lane) {
    const uint2 v = ((const uint2*)from)[lane];
    to[0] = v.x, to[1] = v.y;
}

__device__ __forceinline__ void read_words(u32 (&to)[4], const u8* from, int lane) {
    const uint4 v = ((const uint4*)from)[lane];
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

__device__ __forceinline__ void read_words(u32 (&to)[8], const u8* from, int lane) {
    const uint4 v = ((const uint4*)from)[lane], w = ((const uint4*)from)[WARP + lane];
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
    to[4] = w.x, to[5] = w.y, to[6] = w.z, to[7] = w.w;
}

__device__ __forceinline__ void read_affine(AffineTile& w, const u8* words, const u8* scales,
                                            int lane) {
    read_words(w.low, words, lane);
#if HIGH_BITS
    read_words(w.high, words + WARP * LOW_BITS * 4, lane);
#endif
    read_words(w.scales, scales, lane >> 2);
}

// a * factor [+ b] for two bf16 in a word, exact here; factor: 2^e. Subnormals count, as in
// scaled_by_low.
__device__ __forceinline__ u32 times_power(u32 a, int e) {
    return scaled_by_low(a, (u32)(e + 127) << 7);
}

__device__ __forceinline__ u32 times_power_plus(u32 a, int e, u32 b) {
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;"
        : "=r"(r) : "r"(a), "r"((u32)(e + 127) << 7 | (u32)(e + 127) << 23), "r"(b));
    return r;
}

// The codes of half h of the tile, times 2^-SHIFTED, as the A fragments of two k steps. The eight
// lower bits of a bf16 are a number n 2^-133 for every n, subnormal or not, so a code at any place
// among them is one product away from its value.
__device__ __forceinline__ void decode_affine(u32 (&a)[8], const AffineTile& w, int h) {
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        const int p = 8 * h + r, place = p % LOW_PAIRS * LOW_BITS;
        const u32 low = w.low[p / LOW_PAIRS] >> (place & 8);
        a[r] = times_power(low & (((1 << LOW_BITS) - 1) << (place & 7)) * 0x10001u,
                           133 - SHIFTED(r % 2) - (place & 7));
#if HIGH_BITS
        const int above = p % HIGH_PAIRS * HIGH_BITS;
        const u32 high = w.high[p / HIGH_PAIRS] >> (above & 8);
        a[r] = times_power_plus(high & (((1 << HIGH_BITS) - 1) << (above & 7)) * 0x10001u,
                                133 - SHIFTED(0) + LOW_BITS - (above & 7), a[r]);
#endif
    }
}

// The same of one plane as their bits are: times 2^-133 and 2^(a place among the lower eight).
__device__ __forceinline__ void raw_codes(u32 (&a)[8], const AffineTile& w, int h) {
#pragma unroll
    for (int r = 0; r < 8; ++r) {
        const int p = 8 * h + r, place = p % LOW_PAIRS * LOW_BITS;
        a[r] = (w.low[p / LOW_PAIRS] >> (place & 8))
            & (((1 << LOW_BITS) - 1) << (place & 7)) * 0x10001u;
    }
}
