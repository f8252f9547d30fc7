// SPDX-License-Identifier: Apache-2.0
// The definition of correct: one fp32 accumulator per output, k ascending, multiply then add.
#include <algorithm>

#include "common/base/bf16.h"
#include "kernels/cpu/gemm/gemm_isa.h"
#include "kernels/cpu/gemm/packed_matrix.h"

namespace kt::scalar {
namespace {

template <typename X>
void Multiply(const MultiplyArgs& args, int tile_begin, int tile_end) {
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    const bf16* w = reinterpret_cast<const bf16*>(args.w + tile * args.tile_bytes);
    const int rows = std::min(kTileRows, args.n - tile * kTileRows);
    for (int t = 0; t < args.tokens; ++t) {
      const X* x = static_cast<const X*>(args.x) + t * args.x_stride;
      float* y = args.y + t * args.y_stride + int64_t{tile} * kTileRows;
      float sum[kTileRows] = {};
      if (args.add && args.scales == nullptr) std::copy(y, y + rows, sum);
      for (int c = 0; c < args.k; ++c) {
        const bf16* lane = w + size_t{kTileRows} * 2 * (c / 2) + c % 2;
        for (int r = 0; r < kTileRows; ++r) sum[r] += ToFloat(x[c]) * ToFloat(lane[r * 2]);
      }
      if (args.scales != nullptr) {
        for (int r = 0; r < rows; ++r)
          sum[r] = args.scales[tile * kTileRows + r] * sum[r] + (args.add ? y[r] : 0.0f);
      }
      std::copy(sum, sum + rows, y);
    }
  }
}

}  // namespace

void MultiplyBf16(const MultiplyArgs& args, int tile_begin, int tile_end) noexcept {
  Multiply<bf16>(args, tile_begin, tile_end);
}
void MultiplyF32(const MultiplyArgs& args, int tile_begin, int tile_end) noexcept {
  Multiply<float>(args, tile_begin, tile_end);
}

}  // namespace kt::scalar
