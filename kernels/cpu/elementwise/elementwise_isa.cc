// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/elementwise/elementwise.h"
#include "kernels/cpu/simd/vec.h"

namespace kt::KT_ISA_NAMESPACE {
namespace {

template <typename T>
void AddPartsTyped(const AddPartsArgs& a) {
  T* residual = static_cast<T*>(a.residual) + a.begin;
  ForEachVector(a.end - a.begin, [&](int64_t i, auto load, auto store) {
    VecF sum = load(a.parts[0] + a.begin + i);
    for (int p = 1; p < a.num_parts; ++p) sum += load(a.parts[p] + a.begin + i);
    store(residual + i, load(residual + i) + sum);
  });
}

template <typename T>
void SiluMulTyped(const SiluMulArgs& a) {
  for (int row = 0; row < a.rows; ++row) {
    const float* gate = a.gate + row * a.stride;
    const float* up = a.up + row * a.stride;
    T* out = static_cast<T*>(a.out) + row * a.out_stride;
    ForEachVector(a.n, [&](int64_t i, auto load, auto store) {
      VecF g = load(gate + i);
      store(out + i, g / (Exp(-g) + 1.0f) * load(up + i));
    });
  }
}

template <typename T>
void ConvertTyped(const ConvertArgs& a) {
  for (int row = 0; row < a.rows; ++row) {
    const float* x = a.x + row * a.stride;
    T* out = static_cast<T*>(a.out) + row * a.out_stride;
    if (a.bias == nullptr) {
      ForEachVector(a.n, [&](int64_t i, auto load, auto store) { store(out + i, load(x + i)); });
    } else {
      ForEachVector(a.n, [&](int64_t i, auto load, auto store) {
        store(out + i, load(x + i) + load(a.bias + i));
      });
    }
  }
}

}  // namespace

void AddParts(const AddPartsArgs& args) noexcept {
  args.is_bf16 ? AddPartsTyped<bf16>(args) : AddPartsTyped<float>(args);
}
void SiluMul(const SiluMulArgs& args) noexcept {
  args.is_bf16 ? SiluMulTyped<bf16>(args) : SiluMulTyped<float>(args);
}
void Convert(const ConvertArgs& args) noexcept {
  args.is_bf16 ? ConvertTyped<bf16>(args) : ConvertTyped<float>(args);
}

}  // namespace kt::KT_ISA_NAMESPACE
