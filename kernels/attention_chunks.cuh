// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// Where the keys of a sequence are cut: CHUNK keys a chunk below position 8,192, then 64 chunks for
// each doubling of the position; with a window CHUNK keys everywhere. The cuts depend on the
// position alone, so that every row that sees a key sees it in the same chunk, and there are at most
// 320 + 8,192 / CHUNK of them below position 262,144. ops/attention_decode.py has the same in Python.
//
// Constants: WINDOW (0: none), CHUNK (64 or 128).

#define TILE 64                          // keys that a block does at a time
#define FLAT_KEYS 8192
#define FLAT_CHUNKS (FLAT_KEYS / CHUNK)
#define DOUBLING 64

// The chunk that holds position p.
__device__ __forceinline__ int chunk_of(int p) {
    if (WINDOW > 0 || p < FLAT_KEYS) return p / CHUNK;
    const int level = 31 - __clz(p / FLAT_KEYS);                 // chunks of 128 << level keys
    return FLAT_CHUNKS + level * DOUBLING + p / (TILE << (level + 1)) - DOUBLING;
}

__device__ __forceinline__ int chunk_start(int chunk) {
    if (WINDOW > 0 || chunk <= FLAT_CHUNKS) return chunk * CHUNK;
    const int level = (chunk - FLAT_CHUNKS) / DOUBLING;
    return (TILE << (level + 1)) * (DOUBLING + (chunk - FLAT_CHUNKS) % DOUBLING);
}

__device__ __forceinline__ int first_visible(int position) {
    return WINDOW > 0 ? max(0, position - WINDOW + 1) : 0;
}

// The first key that a block looks at of a chunk whose rows see `low` and later ones.
__device__ __forceinline__ int first_of(int chunk, int low) {
    return max(chunk_start(chunk), low / TILE * TILE);
}
