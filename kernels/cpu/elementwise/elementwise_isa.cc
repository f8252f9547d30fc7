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

// min and max that keep a NaN of x.
VecF AtMost(VecF x, float limit) { return x > Set(limit) ? Set(limit) : x; }
VecF AtLeast(VecF x, float limit) { return x < Set(limit) ? Set(limit) : x; }

template <typename T>
void GluTyped(const GluArgs& a) {
  const GluParams& p = a.params;
  for (int row = 0; row < a.rows; ++row) {
    const float* gate = a.gate + row * a.stride;
    const float* up = a.up + row * a.stride;
    T* out = static_cast<T*>(a.out) + row * a.out_stride;
    ForEachVector(a.n, [&](int64_t i, auto load, auto store) {
      const VecF g = AtMost(load(gate + i), p.limit);
      const VecF u = AtLeast(AtMost(load(up + i), p.limit), -p.limit);
      store(out + i, g / (Exp(g * -p.alpha) + 1.0f) * (u + p.up_offset));
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

template <typename T>
void SigmoidMulTyped(const SigmoidMulArgs& a) {
  for (int row = 0; row < a.rows; ++row) {
    T* x = static_cast<T*>(a.x) + row * a.x_stride;
    const T* gate = static_cast<const T*>(a.gate) + row * a.gate_stride;
    ForEachVector(a.n, [&](int64_t i, auto load, auto store) {
      store(x + i, load(x + i) / (Exp(-load(gate + i)) + 1.0f));
    });
  }
}

}  // namespace

void AddParts(const AddPartsArgs& args) noexcept {
  args.is_bf16 ? AddPartsTyped<bf16>(args) : AddPartsTyped<float>(args);
}
void Glu(const GluArgs& args) noexcept {
  args.is_bf16 ? GluTyped<bf16>(args) : GluTyped<float>(args);
}
void Convert(const ConvertArgs& args) noexcept {
  args.is_bf16 ? ConvertTyped<bf16>(args) : ConvertTyped<float>(args);
}
void SigmoidMul(const SigmoidMulArgs& args) noexcept {
  args.is_bf16 ? SigmoidMulTyped<bf16>(args) : SigmoidMulTyped<float>(args);
}
void ScaleRows(const ScaleRowsArgs& args) noexcept {
  for (int row = 0; row < args.rows; ++row) {
    float* y = args.y + row * args.stride;
    const VecF divisor = Exp(Set(-args.gate[row])) + 1.0f;
    ForEachVector(args.n,
                  [&](int64_t i, auto load, auto store) { store(y + i, load(y + i) / divisor); });
  }
}

}  // namespace kt::KT_ISA_NAMESPACE
