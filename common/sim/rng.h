// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_SIM_RNG_H_
#define KT_COMMON_SIM_RNG_H_

#include <cstdint>

namespace kt {

// One step of splitmix64 (Steele, Lea, Flood 2014): a bijection whose outputs look independent.
constexpr uint64_t SplitMix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// The same numbers for the same seed, on every machine. Not for secrets.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    const uint64_t value = SplitMix64(state_);
    state_ += 0x9e3779b97f4a7c15u;
    return value;
  }
  // In [low, high], both included; low <= high.
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Next() % (static_cast<uint64_t>(high - low) + 1));
  }
  bool Chance(double probability) {
    return static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
  }

 private:
  uint64_t state_;
};

}  // namespace kt

#endif  // KT_COMMON_SIM_RNG_H_
