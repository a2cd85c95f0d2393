// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// What a warp of prefill_attention_wgmma.cu has of K and V: of each tile of TILE keys 16 keys, and
// 64 columns of all of them. It requests them by itself, in slices of 4 KB, into a ring of SLOTS
// slots, and makes left operands of them.
//   K: a lane has eight neighbouring numbers of a key, the operand of two steps
//   V: ldmatrix turns it; of e4m3 two neighbouring columns travel as one 16-bit number. Of 16
//     keys, k and k + 8 are neighbours in the sum, as one lane has their scores
// Vectors of 16 bytes are swapped about within a row so that lanes that are served together meet
// all banks. Constants: D, KV, S, FP8.

#define WARPS 8
#define QUERIES 64
#define TILE 128                         // keys
#define ELEMENT (FP8 ? 1 : 2)
#define ROW_BYTES (D * ELEMENT)          // of a key
#define SLOTS 4
#define SLOT_BYTES 4096
#define RING_BYTES (SLOTS * SLOT_BYTES)  // of a warp
#define K_SLICES (FP8 ? 2 : 4)           // of a tile: 16 keys x 256 bytes
#define V_SLICES (FP8 ? 2 : 4)           // V_KEYS x 64 columns
#define V_KEYS (TILE / V_SLICES)
#define V_VECTORS (4 * ELEMENT)          // of 64 columns
#define UNITS (8 / ELEMENT)              // of 32 numbers, two steps: of 256 bytes of a key

// Places of a 16-byte vector in a row of a slice.
#define K_PLACE(row, vector) ((vector) ^ (FP8 ? ((row) & 3) << 1 : ((row) & 1) << 2))
#define V_PLACE(row, vector)                                                                     \
    ((vector) ^ (FP8 ? (row) >> 1 & 1 | (row) >> 2 & 2 : (row) & 3 | (row) >> 1 & 4))

struct Block {
    int first_row, num_rows;             // of the span
    int first_query, low_key, end_key;   // of this block; keys that some row sees
    int kv;
};

// In lane i < 8: the page of keys tile_key + 16 i and up.
__device__ __forceinline__ int find_page(const int* table, const Block& block, int tile_key,
                                         int lane) {
    const int key = tile_key + 16 * lane;
    return lane < TILE / 16 && key + 16 > block.low_key && key < block.end_key ? table[key / S]
                                                                               : 0;
}

// Whether some row of the block sees a key; where none does, zeros stand for V.
__device__ __forceinline__ bool is_seen(const Block& block, int key) {
    return (u32)(key - block.low_key) < (u32)(block.end_key - block.low_key);
}

// The part-th of eight requests of a slice of this warp's part of K: 256 bytes of each of 16 keys.
// `from` is this lane's place in the page, from the first on.
__device__ __forceinline__ void copy_k(u8* slot, const u8*& from, const u8* pages,
                                       int page_of_lane, const Block& block, int tile_key,
                                       int slice, int part, int lane) {
    const int warp = threadIdx.x / WARP, key = tile_key + 16 * warp;
    const int vector = lane % 16, row = lane / 16;
    if (part == 0) {
        const int page = __shfl_sync(FULL_MASK, page_of_lane, warp);
        from = pages + (((u64)page * S + key % S + row) * KV + block.kv) * ROW_BYTES
               + slice * 256 + vector * 16;
    }
    // a key that no row sees has no score, whatever is read here
    copy_async(slot + row * 256 + K_PLACE(row + part % 2 * 2, vector) * 16 + part * 512,
               from + part * 2 * (KV * ROW_BYTES), key < block.end_key);
}

// The same of V: 64 columns of V_KEYS keys.
__device__ __forceinline__ void copy_v(u8* slot, const u8*& from, const u8* pages,
                                       int page_of_lane, const Block& block, int tile_key,
                                       int slice, int part, int lane) {
    const int warp = threadIdx.x / WARP, vector = lane % V_VECTORS, row = lane / V_VECTORS;
    const int parts = V_VECTORS / 2, rows = 16 / parts;      // of 16 keys, of one page
    const int first = slice * V_KEYS + part / parts * 16, key = tile_key + first;
    if (part % parts == 0) {
        const int page = __shfl_sync(FULL_MASK, page_of_lane, first / 16);
        from = pages + (((u64)page * S + key % S + row) * KV + block.kv) * ROW_BYTES
               + (warp * V_VECTORS + vector) * 16;
    }
    const int place = V_PLACE(row + part % parts * rows, vector);
    copy_async(slot + part * 512 + row * (V_VECTORS * 16) + place * 16,
               from + part % parts * (rows * KV * ROW_BYTES),
               is_seen(block, key + row + part % parts * rows));
}

// What shared memory has of a left operand: two steps, or 16 keys and 2 times 16 columns.
struct Raw {
    u32 words[FP8 ? 4 : 8];
};

// 32 numbers of this warp's 16 keys, eight neighbours a lane: of keys g and g + 8.
__device__ __forceinline__ Raw load_k(const u8* slot, int unit, int lane) {
    const int g = lane >> 2, t = lane & 3;
    Raw raw;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const u8* row = slot + (g + 8 * h) * 256;
        if (FP8) {
            const uint2 v = *(const uint2*)(row + K_PLACE(g, unit * 2 + t / 2) * 16 + t % 2 * 8);
            raw.words[2 * h] = v.x, raw.words[2 * h + 1] = v.y;
        } else {
            const uint4 v = *(const uint4*)(row + K_PLACE(g, unit * 4 + t) * 16);
            raw.words[4 * h % 8] = v.x, raw.words[(4 * h + 1) % 8] = v.y;
            raw.words[(4 * h + 2) % 8] = v.z, raw.words[(4 * h + 3) % 8] = v.w;
        }
    }
    return raw;
}

__device__ __forceinline__ void unpack_k(u32 (&a)[2][4], const Raw& raw) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
        if (FP8) {
            a[step][0] = e4m3_to_f16(raw.words[step]);
            a[step][1] = e4m3_to_f16(raw.words[2 + step]);
            a[step][2] = e4m3_to_f16(raw.words[step] >> 16);
            a[step][3] = e4m3_to_f16(raw.words[2 + step] >> 16);
        } else {
            a[step][0] = raw.words[2 * step], a[step][1] = raw.words[(2 * step + 4) % 8];
            a[step][2] = raw.words[2 * step + 1], a[step][3] = raw.words[(2 * step + 5) % 8];
        }
    }
}

// 16 keys of a slice of V and 2 times 16 of this warp's columns, the first or the last.
__device__ __forceinline__ Raw load_v(const u8* slot, int step, int half, int lane) {
    // row i of the matrix of steps' first (h = 0) or last eight numbers: keys of a lane's scores
    const int i = lane % 8, h = lane / 8 % 2, row = i / 2 + i % 2 * 8 + h * 4;
    const uint4* key = (const uint4*)slot + step * (16 * V_VECTORS) + row * V_VECTORS;
    Raw raw;
#pragma unroll
    for (int pair = 0; pair < V_VECTORS / 4; ++pair) {
        u32 m[4];
        load_transposed(m, key + V_PLACE(row, half * (V_VECTORS / 2) + pair * 2 + lane / 16));
#pragma unroll
        for (int j = 0; j < 4; ++j) raw.words[4 * pair + j] = m[j];
    }
    return raw;
}

__device__ __forceinline__ void unpack_v(u32 (&a)[2][4], const Raw& raw) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
        if (FP8) {                       // bytes: two columns of one key, then of the other
            a[m][0] = e4m3_to_f16(__byte_perm(raw.words[2 * m], 0, 0x4420));
            a[m][1] = e4m3_to_f16(__byte_perm(raw.words[2 * m], 0, 0x4431));
            a[m][2] = e4m3_to_f16(__byte_perm(raw.words[2 * m + 1], 0, 0x4420));
            a[m][3] = e4m3_to_f16(__byte_perm(raw.words[2 * m + 1], 0, 0x4431));
        } else {
            a[m][0] = raw.words[4 * m % 8], a[m][1] = raw.words[(4 * m + 2) % 8];
            a[m][2] = raw.words[(4 * m + 1) % 8], a[m][3] = raw.words[(4 * m + 3) % 8];
        }
    }
}
