// SPDX-License-Identifier: Apache-2.0
// Random numbers as a pure function of a key and a counter, so that a replayed step draws what the
// first run drew. Shared with device code. Philox4x32-10 of Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011).
#ifndef KT_KERNELS_CPU_SAMPLING_COUNTER_RANDOM_H_
#define KT_KERNELS_CPU_SAMPLING_COUNTER_RANDOM_H_

#include <cstdint>

#if defined(__CUDACC__)
#define KT_HOST_DEVICE __host__ __device__
#else
#define KT_HOST_DEVICE
#endif

namespace kt {

struct Philox {
  uint32_t word[4];
};

KT_HOST_DEVICE constexpr Philox Philox4x32(uint64_t key, Philox counter) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * counter.word[0],
                   b = uint64_t{0xCD9E8D57u} * counter.word[2];
    counter = {{static_cast<uint32_t>(b >> 32) ^ counter.word[1] ^ key0, static_cast<uint32_t>(b),
                static_cast<uint32_t>(a >> 32) ^ counter.word[3] ^ key1, static_cast<uint32_t>(a)}};
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Uniform in [0, 1) with 53 bits: the draw for the token at `position` of the output of choice
// `choice`.
KT_HOST_DEVICE constexpr double UniformDraw(uint64_t seed, uint32_t choice, uint32_t position) {
  const Philox x = Philox4x32(seed, {{position, choice, 0, 0}});
  return static_cast<double>((uint64_t{x.word[0]} << 32 | x.word[1]) >> 11) * 0x1p-53;
}

}  // namespace kt

#endif  // KT_KERNELS_CPU_SAMPLING_COUNTER_RANDOM_H_
