// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// What a graph takes from memory of the host and what it leaves there, without a copy before or
// behind it. That memory has SLOTS equal places, one for each run of the graph in turn: the host
// fills the next one while the run before may still read its own.
//   slot_in   to = the place of this run; state counts the runs
//   slot_out  the place of this run = from
//
// slots (SLOTS, slot_vectors) 16 bytes, pinned; to, from (num_vectors) 16 bytes; state (1) u32
//
// Bytes moved: 32 num_vectors, half of them past the bus. Bound by its latency. One block.
//
// PRECOND: all 16-byte aligned; slot_in is the first launch of a run and slot_out follows it.
// Constants: SLOTS.

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
slot_in(uint4* __restrict__ to, const uint4* slots, u32* state, int slot_vectors,
        int num_vectors) {
    allow_next_kernel();
    wait_for_previous_kernel();
    const u32 run = load_activation_word(state);
    const uint4* own = slots + (u64)(run % SLOTS) * slot_vectors;
    for (int i = threadIdx.x; i < num_vectors; i += THREADS)
        store_vector(to + i, load_activations(own + i));
    __syncthreads();
    if (threadIdx.x == 0) *state = run + 1;
}

extern "C" __global__ void __launch_bounds__(THREADS)
slot_out(uint4* __restrict__ slots, const uint4* from, const u32* state, int slot_vectors,
         int num_vectors) {
    allow_next_kernel();
    wait_for_previous_kernel();
    const u32 run = load_activation_word(state) - 1;
    uint4* own = slots + (u64)(run % SLOTS) * slot_vectors;
    for (int i = threadIdx.x; i < num_vectors; i += THREADS)
        store_vector(own + i, load_activations(from + i));
}
