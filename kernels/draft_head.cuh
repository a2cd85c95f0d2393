// Copyright 2026 The gemma_thor_ros developers
// SPDX-License-Identifier: Apache-2.0
//
// One head of a drafter by one warp: norm, rope, scale. Included by draft_heads.cu and
// draft_context.cu, which give the constants D, a multiple of 8 up to 512, and PAIRS, the pairs
// (i, i + D / 2) that rotate, a multiple of 2.

#define HALF_WORDS (D / 4)               // of two numbers, in half a head
#define PARTS ((HALF_WORDS + WARP - 1) / WARP)

// Word i of a lane is lane + 32 i of either half.
struct DraftHead {
    float low[PARTS][2], high[PARTS][2];
};

__device__ __forceinline__ DraftHead load_draft_head(const u16* from, int lane) {
    DraftHead head = {};
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const int word = lane + WARP * p;
        if (word >= HALF_WORDS) continue;
        const u32 low = load_activation_word(from + 2 * word);
        const u32 high = load_activation_word(from + D / 2 + 2 * word);
        head.low[p][0] = bf16_low(low), head.low[p][1] = bf16_high(low);
        head.high[p][0] = bf16_low(high), head.high[p][1] = bf16_high(high);
    }
    return head;
}

__device__ __forceinline__ void store_draft_head(u16* to, const DraftHead& head, int lane) {
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const int word = lane + WARP * p;
        if (word >= HALF_WORDS) continue;
        ((u32*)to)[word] = pack_bf16(head.low[p][0], head.low[p][1]);
        ((u32*)(to + D / 2))[word] = pack_bf16(head.high[p][0], head.high[p][1]);
    }
}

// What does not depend on the head: of this lane's pairs. Loads of it are not restrict, so that
// they stay before the wait.
struct DraftTurn {
    float low[PARTS][2], high[PARTS][2];         // the norm's weight
    float sine[PARTS][2], cosine[PARTS][2];
};

// turns: frequencies times 2^64 in turns per position, as in kv_append.cu.
__device__ __forceinline__ DraftTurn prepare_turn(const float* weight, const u64* turns,
                                                  int position, int lane) {
    DraftTurn turn;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
        const int word = lane + WARP * p;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int pair = 2 * word + i;
            turn.sine[p][i] = 0.0f, turn.cosine[p][i] = 1.0f;
            turn.low[p][i] = turn.high[p][i] = 0.0f;
            if (word >= HALF_WORDS) continue;
            turn.low[p][i] = weight[pair];
            turn.high[p][i] = weight[D / 2 + pair];
            if (pair < PAIRS) {
                const long long part = (long long)(turns[pair] * (u64)(long long)position);
                const float half_turns = __ll2float_rn(part) * 1.0842021724855044e-19f;  // 2^-63
                sincospif(half_turns, &turn.sine[p][i], &turn.cosine[p][i]);
            }
        }
    }
    return turn;
}

// head = rope(rms(head; weight)) * scale
__device__ __forceinline__ void norm_and_turn(DraftHead& head, const DraftTurn& turn, float eps,
                                              float scale) {
    float sum = 0.0f;
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            sum = fmaf(head.low[p][i], head.low[p][i], sum);
            sum = fmaf(head.high[p][i], head.high[p][i], sum);
        }
    }
    const float inverse = __fdiv_rn(1.0f, __fsqrt_rn(warp_sum(sum) / D + eps));
#pragma unroll
    for (int p = 0; p < PARTS; ++p) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const float x = head.low[p][i] * inverse * turn.low[p][i];
            const float y = head.high[p][i] * inverse * turn.high[p][i];
            head.low[p][i] = (x * turn.cosine[p][i] - y * turn.sine[p][i]) * scale;
            head.high[p][i] = (y * turn.cosine[p][i] + x * turn.sine[p][i]) * scale;
        }
    }
}
