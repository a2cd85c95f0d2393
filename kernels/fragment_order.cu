// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// fragment_order: NVFP4 codes and scales of a checkpoint -> the order in which mma.sync takes them.
//
//   tile (r, k) of the result holds weight rows of `low` (its rows 0..7) and `high` (rows 8..15),
//   columns 64 k .. 64 k + 63. A plain matrix is both low and high, 16 rows apart from tile to
//   tile; gate and up of an MLP are interleaved as low = gate, high = up, 8 rows apart.
//
// codes  (R, C, 32, 4) u32   tiles, R = row tiles, C = column tiles
// scales (R, C, 16) u32      four encoded e4m3 scales a word
// unfit  (1) u32             set to 1 where a scale is negative or NaN, else left alone
// low, high                  packed (N, M / 2) u8, group scales (N, M / 16) u8 e4m3
//
// Bytes moved: N M / 2 + N M / 16 read and about as much written; bound by memory.
// One thread writes two code words (one half of a lane's tile); even lanes write a scale word.
// PRECOND: M a multiple of 16; rows of `packed` start at multiples of 4 bytes.
// PRECOND: codes and scales cover num_row_tiles tiles; rows and columns beyond N and M become 0.

// The nibbles of 8 columns of one row, column 0 lowest; 0 outside, and where the scale is 0.
__device__ __forceinline__ u32 columns_of(const u8* __restrict__ packed,
                                          const u8* __restrict__ group_scales, int row,
                                          int num_rows, int column, int num_columns) {
    if (row >= num_rows || column >= num_columns) return 0;
    if (group_scales[(u64)row * (num_columns / 16) + column / 16] == 0) return 0;
    return *reinterpret_cast<const u32*>(packed + ((u64)row * num_columns + column) / 2);
}

// e4m3 >= 0 as exponent + 10 in five bits above three bits of fraction, subnormals normalised.
__device__ __forceinline__ u32 encoded_scale(const u8* __restrict__ group_scales, int row,
                                             int num_rows, int group, int num_groups,
                                             u32* __restrict__ unfit) {
    if (row >= num_rows || group >= num_groups) return 0;
    u32 bits = group_scales[(u64)row * num_groups + group];
    if (bits >= 0x7F) *unfit = 1;
    if (bits >= 8) return bits + 24;
    if (bits == 0) return 0;
    u32 top = 31 - __clz(bits);
    return ((top + 1) << 3) | ((bits << (3 - top)) & 7);
}

#if !E2M1_HARDWARE
// A code at the place from which a rotation to the left by n brings it to bits 15, 8..6.
__device__ __forceinline__ u32 placed(u32 low, u32 high, int n) {
    u32 pair = ((low & 8) << 12) | ((low & 7) << 6) | ((high & 8) << 28) | ((high & 7) << 22);
    return __funnelshift_r(pair, pair, n);
}
#endif

extern "C" __global__ void __launch_bounds__(256)
fragment_order(uint2* __restrict__ codes, u32* __restrict__ scales, u32* __restrict__ unfit,
               const u8* __restrict__ low_packed, const u8* __restrict__ low_scales,
               const u8* __restrict__ high_packed, const u8* __restrict__ high_scales,
               int num_rows, int num_columns, int num_row_tiles, int num_column_tiles, int step,
               int high_offset) {
    u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    u64 tile = index / 64;
    if (tile >= (u64)num_row_tiles * num_column_tiles) return;
    int lane = (int)(index % 64) / 2, h = (int)index & 1, g = lane >> 2, t = lane & 3;
    int row_tile = (int)(tile / num_column_tiles), column_tile = (int)(tile % num_column_tiles);
    int low_row = row_tile * step + g, high_row = low_row + high_offset;
    int column = column_tile * TILE_COLUMNS + 32 * h + 8 * t;
    u32 low = columns_of(low_packed, low_scales, low_row, num_rows, column, num_columns);
    u32 high = columns_of(high_packed, high_scales, high_row, num_rows, column, num_columns);
    // register r of k step s: columns 4 s + (r / 2) * 2 and + 1 of row g (r even) or g + 8 (r odd)
    u32 first[8], second[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        u32 source = i & 1 ? high : low;
        int shift = 16 * (i >> 2) + 8 * ((i >> 1) & 1);
        first[i] = (source >> shift) & 15;
        second[i] = (source >> (shift + 4)) & 15;
    }
    u32 w0 = 0, w1 = 0;
#if E2M1_HARDWARE
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        w0 |= (first[r] | second[r] << 4) << (8 * r);
        w1 |= (first[4 + r] | second[4 + r] << 4) << (8 * r);
    }
#else
    const u32 left_over = 0x06030603u;
    u32 fourth = placed(first[3], second[3], 6) | placed(first[7], second[7], 12);
    w0 = placed(first[0], second[0], 0) | placed(first[1], second[1], 4)
        | placed(first[2], second[2], 10) | (fourth & left_over);
    w1 = placed(first[4], second[4], 0) | placed(first[5], second[5], 4)
        | placed(first[6], second[6], 10) | ((fourth & ~left_over) >> 2);
#endif
    codes[tile * 64 + lane * 2 + h] = make_uint2(w0, w1);
    if (h == 0 && (lane & 1) == 0) {
        int num_groups = num_columns / 16, group = column_tile * 4 + (t >> 1);
        u32 word = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u8* source = i & 1 ? high_scales : low_scales;
            int row = i & 1 ? high_row : low_row;
            word |= encoded_scale(source, row, num_rows, group + (i & 2), num_groups, unfit)
                << (8 * i);
        }
        scales[tile * TILE_SCALE_WORDS + (lane >> 1)] = word;
    }
}
