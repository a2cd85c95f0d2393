// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Where the keys of a sequence are cut: 64 keys a chunk below position 8,192, then 64 chunks for
// each doubling of the position; with a window 64 keys everywhere. The cuts depend on the position
// alone, so that every row that sees a key sees it in the same chunk, and there are at most 448 of
// them below position 262,144. ops/attention_decode.py has the same in Python.
//
// Constants: WINDOW (0: none).

#define TILE 64                          // keys of a chunk, or of a part of a large one
#define FLAT_CHUNKS 128
#define DOUBLING 64

// The chunk that holds position p.
__device__ __forceinline__ int chunk_of(int p) {
    if (WINDOW > 0 || p < FLAT_CHUNKS * TILE) return p / TILE;
    const int level = 31 - __clz(p / (FLAT_CHUNKS * TILE));      // chunks of 128 << level keys
    return FLAT_CHUNKS + level * DOUBLING + p / (TILE << (level + 1)) - DOUBLING;
}

__device__ __forceinline__ int chunk_start(int chunk) {
    if (WINDOW > 0 || chunk <= FLAT_CHUNKS) return chunk * TILE;
    const int level = (chunk - FLAT_CHUNKS) / DOUBLING;
    return (TILE << (level + 1)) * (DOUBLING + (chunk - FLAT_CHUNKS) % DOUBLING);
}

__device__ __forceinline__ int first_visible(int position) {
    return WINDOW > 0 ? max(0, position - WINDOW + 1) : 0;
}
