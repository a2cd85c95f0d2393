// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// NVFP4 weights in fragment order on their way through shared memory: each warp has a ring of its
// own, which asynchronous copies fill some stages ahead of the products.
//
// Weights that wait in registers do not stay ahead: the assembler gives all loads of a loop one of
// six counters, so that whoever waits for a row of activations waits for the weights requested
// last, too: a read from memory for every tile (test/unit/kernels/test_early_loads.py).
//
// Constants: COLUMN_TILES (of a row tile), STAGE_TILES (tiles of a stage, at most 7), STAGES (of a
// ring, at least 2). ITEM_TILES: tiles of an item, if it has not all of a row tile's columns.
// Dynamic shared memory: RING_BYTES for each warp of a block.

#include "prefill_tile.cuh"

#ifndef ITEM_TILES
#define ITEM_TILES COLUMN_TILES
#endif
#define ITEM_STAGES ((ITEM_TILES + STAGE_TILES - 1) / STAGE_TILES)
// Places in a stage, in bytes: codes, scales, and in the last one of an item its two row scales.
#define STAGE_SCALES (STAGE_TILES * TILE_CODE_VECTORS * 16)
#define STAGE_ROW_SCALES (STAGE_SCALES + STAGE_TILES * TILE_SCALE_WORDS * 4)
#define STAGE_BYTES (STAGE_ROW_SCALES + 16)
#define RING_BYTES (STAGES * STAGE_BYTES)

extern __shared__ __align__(16) u8 weight_rings[];

// Where something lies in shared memory. Kept as a number that the assembler can't work out again:
// else it reads the thread's index anew in every stage.
typedef unsigned int SharedAddress;

__device__ __forceinline__ SharedAddress shared_address(const void* p) {
    return (u32)__cvta_generic_to_shared(p);
}

// 16 bytes past the L1. Without a cache hint: the assembler of CUDA 13.1 to 13.3 leaves out
// the createpolicy that only such copies use, and the device stops at the first of them.
__device__ __forceinline__ void copy_weights(SharedAddress to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(to), "l"(from) : "memory");
}

// 8 bytes.
__device__ __forceinline__ void copy_pair(SharedAddress to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" :: "r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ uint4 read_vector(SharedAddress from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from));
    return v;
}

__device__ __forceinline__ u32 read_word(SharedAddress from) {
    u32 x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(from));
    return x;
}

// Where an item's next stage starts, for this lane, and the scales of its rows.
struct Source {
    const uint4* codes;
    const uint4* scales;
    const float* row_scales;
};

// `tile` and `row_tile` count from the start of all matrices.
__device__ __forceinline__ Source source_at(const uint4* codes, const u32* scales,
                                            const float* row_scales, u64 tile, u64 row_tile,
                                            int lane) {
    return {codes + tile * TILE_CODE_VECTORS + lane,
            (const uint4*)scales + tile * (TILE_SCALE_WORDS / 4) + lane, row_scales + 2 * row_tile};
}

// A warp's ring as this lane sees it.
struct Slots {
    SharedAddress vectors;       // its 16 bytes of the first slot's first tile
    SharedAddress words;         // the scales that it needs of that tile
};

// `place`: the warp's in its block.
__device__ __forceinline__ Slots slots_of(int place, int lane) {
    const SharedAddress first = shared_address(weight_rings) + place * RING_BYTES;
    return {__shfl_sync(FULL_MASK, first, 0) + __shfl_sync(FULL_MASK, lane, lane) * 16,
            __shfl_sync(FULL_MASK, first + STAGE_SCALES, 0)
                + (__shfl_sync(FULL_MASK, lane, lane) >> 1) * 4};
}

// Request the next TILES tiles of an item into the slot at `to`, by all lanes of a warp.
template <int TILES>
__device__ __forceinline__ void request_tiles(const Slots& slots, u32 slot, const Source& from,
                                              int lane) {
    const SharedAddress to = slots.vectors + slot;
#pragma unroll
    for (int i = 0; i < TILES; ++i)
        copy_weights(to + i * WARP * 16, from.codes + i * TILE_CODE_VECTORS);
    if (lane < TILE_SCALE_WORDS / 4 * TILES) copy_weights(to + STAGE_SCALES, from.scales);
}

// Request stage `stage` of an item into the slot at `slot`, by all lanes of a warp, and step on to
// its next one.
__device__ __forceinline__ void request_stage(const Slots& slots, u32 slot, Source& from,
                                              int stage, int lane) {
    if (stage < ITEM_STAGES - 1) {
        request_tiles<STAGE_TILES>(slots, slot, from, lane);
    } else {
        request_tiles<ITEM_TILES - (ITEM_STAGES - 1) * STAGE_TILES>(slots, slot, from, lane);
        if (lane == WARP - 1)
            copy_pair(slots.vectors + slot + STAGE_ROW_SCALES - 16 * (WARP - 1), from.row_scales);
    }
    from.codes += STAGE_TILES * TILE_CODE_VECTORS;
    from.scales += STAGE_TILES * (TILE_SCALE_WORDS / 4);
}

__device__ __forceinline__ WeightTile read_tile(const Slots& slots, u32 slot, int i) {
    WeightTile w;
    w.codes = read_vector(slots.vectors + slot + i * WARP * 16);
    w.scales = read_word(slots.words + slot + i * TILE_SCALE_WORDS * 4);
    return w;
}

// Of rows 0..7 and 8..15 of an item whose last stage lies at `slot`.
__device__ __forceinline__ float2 read_row_scales(const Slots& slots, u32 slot, int lane) {
    const SharedAddress at = slots.vectors + slot + STAGE_ROW_SCALES - 16 * lane;
    return make_float2(__uint_as_float(read_word(at)), __uint_as_float(read_word(at + 4)));
}

__device__ __forceinline__ u32 next_slot(u32 slot) {
    return slot == (STAGES - 1) * STAGE_BYTES ? 0 : slot + STAGE_BYTES;
}
