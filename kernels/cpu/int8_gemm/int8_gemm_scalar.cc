// SPDX-License-Identifier: Apache-2.0
// The definition: one product of codes after the other, in the order in which they lie.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/int8_gemm/int8_gemm_isa.h"

namespace kt::scalar {
namespace {

constexpr int kTileRows = 16, kUnitBytes = 64;

// dot(unit of a row, 4 bytes; x of the same columns) -> their sum of products.
template <int kUnitXBytes, typename Dot>
void Multiply(const Int8MultiplyArgs& a, int tile_begin, int tile_end, Dot dot) {
  for (int r = tile_begin * kTileRows; r < std::min(a.n, tile_end * kTileRows); ++r) {
    const uint8_t* tile = a.w + r / kTileRows * a.tile_bytes;
    const uint8_t* row = tile + r % kTileRows * 4;
    float scale;
    std::memcpy(&scale, tile + int64_t{a.units} * kUnitBytes + r % kTileRows * sizeof scale,
                sizeof scale);
    for (int t = 0; t < a.tokens; ++t) {
      const int8_t* x = a.x + t * a.x_stride;
      int32_t sum = 0;
      for (int64_t u = 0; u < a.units; ++u) sum += dot(row + u * kUnitBytes, x + u * kUnitXBytes);
      a.y[t * a.y_stride + r] = (a.x_scales[t] * scale) * static_cast<float>(sum);
    }
  }
}

}  // namespace

void MultiplyInt8(const Int8MultiplyArgs& args, int tile_begin, int tile_end) noexcept {
  Multiply<4>(args, tile_begin, tile_end, [](const uint8_t* w, const int8_t* x) {
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += (w[i] - 128) * x[i];
    return sum;
  });
}

void MultiplyInt4(const Int8MultiplyArgs& args, int tile_begin, int tile_end) noexcept {
  Multiply<8>(args, tile_begin, tile_end, [](const uint8_t* w, const int8_t* x) {
    int sum = 0;
    for (int i = 0; i < 4; ++i) sum += (w[i] % 16 - 8) * x[i] + (w[i] / 16 - 8) * x[4 + i];
    return sum;
  });
}

}  // namespace kt::scalar
