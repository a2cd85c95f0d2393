// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// A head of q, k or v in one warp: rms norm and rope, for kv_append.cu and attention_decode.cu. A
// lane has the columns 8 lane .. + 7, with D 512 also 256 above; the sum of squares runs over a
// lane's columns, then over the warp. All that rounds is an intrinsic: the same bits everywhere.
//
// Constants: D (256, 512), PAIRS.

#define PARTS (D / 256)                  // of 8 columns per lane

struct Head {
    float x[PARTS][8];
};

__device__ __forceinline__ Head load_head(const u16* from, int lane) {
    Head head;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const uint4 v = load_activations(from + p * 256 + lane * 8);
        const u32 pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            head.x[p][2 * i] = bf16_low(pairs[i]);
            head.x[p][2 * i + 1] = bf16_high(pairs[i]);
        }
    }
    return head;
}

// What does not depend on the projections, read and computed before they are there.
struct Constants {
    float weight[PARTS][8];
    float sine[8], cosine[8];            // of this lane's pairs
};

__device__ __forceinline__ void load_weight(Constants& c, const float* __restrict__ weight,
                                            int lane) {
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const float4* from = (const float4*)(weight + p * 256 + lane * 8);
        const float4 low = from[0], high = from[1];
        const float all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; ++i) c.weight[p][i] = all[i];
    }
}

__device__ __forceinline__ void compute_turn(u64 turns, int position, float& sine,
                                             float& cosine) {
    const long long part = (long long)(turns * (u64)position);
    sincospif(__ll2float_rn(part) * 1.0842021724855044e-19f, &sine, &cosine);      // 2^-63
}

// A pair is in one lane for D 512, in lanes 16 apart for D 256.
__device__ __forceinline__ int first_pair(int lane) {
    return (PARTS == 2 ? lane : lane % 16) * 8;
}

__device__ __forceinline__ void compute_turns(Constants& c, const u64* __restrict__ turns,
                                              int position, int lane) {
    const int first = first_pair(lane);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        c.sine[i] = 0.0f;
        c.cosine[i] = 1.0f;
        if (first < PAIRS) compute_turn(turns[first + i], position, c.sine[i], c.cosine[i]);
    }
}

__device__ __forceinline__ void normalise(Head& head, const Constants& c, float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = fmaf(head.x[p][i], head.x[p][i], sum);
    }
    const float mean = __fmul_rn(warp_sum(sum), 1.0f / D);           // D is a power of two
    const float inverse = __frcp_rn(__fsqrt_rn(__fadd_rn(mean, eps)));
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            head.x[p][i] = __fmul_rn(__fmul_rn(head.x[p][i], inverse), c.weight[p][i]);
        }
    }
}

__device__ __forceinline__ void turn(float& low, float& high, float cosine, float sine) {
    const float x = low, y = high;
    low = __fmaf_rn(x, cosine, -__fmul_rn(y, sine));
    high = __fmaf_rn(y, cosine, __fmul_rn(x, sine));
}

__device__ __forceinline__ void rotate(Head& head, const Constants& c, int lane) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        if (PARTS == 2) {
            turn(head.x[0][i], head.x[PARTS - 1][i], c.cosine[i], c.sine[i]);
        } else {
            float own = head.x[0][i], other = __shfl_xor_sync(FULL_MASK, own, 16);
            if (lane < 16) {
                turn(own, other, c.cosine[i], c.sine[i]);
            } else {
                turn(other, own, c.cosine[i], c.sine[i]);
            }
            head.x[0][i] = own;
        }
    }
}
