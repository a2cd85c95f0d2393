// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// read_bandwidth: reads everything and keeps a checksum, the ceiling that bench/ measures against.
//
// sums (grid * 256) u32; data (n) 16-byte vectors, each read once with the weights' own loads
//
// Bytes moved: 16 n read. Bound by memory. Eight loads of a thread are in flight together.

extern "C" __global__ void __launch_bounds__(256)
read_bandwidth(u32* __restrict__ sums, const uint4* __restrict__ data, int num_vectors) {
    u64 policy = streaming_policy();
    int stride = gridDim.x * 256, first = blockIdx.x * 256 + threadIdx.x;
    u32 sum = 0;
    int i = first;
    for (; i + 7 * stride < num_vectors; i += 8 * stride) {
        uint4 v[8];
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = load_weights(data + i + j * stride, policy);
#pragma unroll
        for (int j = 0; j < 8; ++j) sum += v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < num_vectors; i += stride) {
        uint4 v = load_weights(data + i, policy);
        sum += v.x ^ v.y ^ v.z ^ v.w;
    }
    sums[first] = sum;
}
