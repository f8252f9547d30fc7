// SPDX-License-Identifier: Apache-2.0
// What the tests of the CPU kernels share: the rows this machine can run, seeded values,
// activations of either type.
#ifndef KT_KERNELS_CPU_SIMD_TESTING_H_
#define KT_KERNELS_CPU_SIMD_TESTING_H_

#include <cstring>
#include <random>
#include <vector>

#include "common/base/bf16.h"
#include "kernels/cpu/features/cpu_features.h"

namespace kt {

inline std::vector<Isa> RunnableIsas() {
  std::vector<Isa> isas;
  for (Isa isa : kAllIsas) {
    if (IsaSupported(isa)) isas.push_back(isa);
  }
  return isas;
}

class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : engine_(seed) {}
  int Int(int min, int max) { return std::uniform_int_distribution<int>(min, max)(engine_); }
  float Normal(float sigma = 1) { return std::normal_distribution<float>(0, sigma)(engine_); }
  std::vector<float> Normals(size_t n, float sigma = 1) {
    std::vector<float> v(n);
    for (float& x : v) x = Normal(sigma);
    return v;
  }

 private:
  std::mt19937_64 engine_;
};

// Activations as the kernels see them; At() reads what was stored, rounding included.
class Activations {
 public:
  Activations(const std::vector<float>& values, bool is_bf16)
      : is_bf16_(is_bf16), f32_(values), bf16_(values.size()) {
    for (size_t i = 0; i < values.size(); ++i) bf16_[i] = ToBf16(values[i]);
  }
  Activations(size_t n, bool is_bf16) : Activations(std::vector<float>(n, 0.0f), is_bf16) {}
  void* data() { return at(0); }
  const void* data() const { return const_cast<Activations*>(this)->at(0); }
  void* at(size_t i) { return is_bf16_ ? static_cast<void*>(bf16_.data() + i) : f32_.data() + i; }
  const void* at(size_t i) const { return const_cast<Activations*>(this)->at(i); }
  float At(size_t i) const { return is_bf16_ ? ToFloat(bf16_[i]) : f32_[i]; }
  size_t size() const { return f32_.size(); }
  // Bit for bit, NaN included.
  bool operator==(const Activations& other) const {
    return is_bf16_ ? std::memcmp(bf16_.data(), other.bf16_.data(), 2 * size()) == 0
                    : std::memcmp(f32_.data(), other.f32_.data(), 4 * size()) == 0;
  }

 private:
  bool is_bf16_;
  std::vector<float> f32_;
  std::vector<bf16> bf16_;
};

// Half a unit in the last place of the activation type, relative.
inline float ActivationEpsilon(bool is_bf16) { return is_bf16 ? 0x1p-8f : 0x1p-24f; }

}  // namespace kt

#endif  // KT_KERNELS_CPU_SIMD_TESTING_H_
