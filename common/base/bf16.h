// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_BASE_BF16_H_
#define KT_COMMON_BASE_BF16_H_

#include <bit>
#include <cstdint>

namespace kt {

// bfloat16: the upper half of an IEEE binary32.
struct bf16 {
  uint16_t bits = 0;
};
static_assert(sizeof(bf16) == 2);

inline float ToFloat(bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }
inline float ToFloat(float x) { return x; }

// Rounds to nearest, ties to even; NaN stays NaN (quiet).
inline bf16 ToBf16(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return bf16{static_cast<uint16_t>((u >> 16) | 0x40)};
  return bf16{static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

inline float RoundToBf16(float x) { return ToFloat(ToBf16(x)); }

}  // namespace kt

#endif  // KT_COMMON_BASE_BF16_H_
