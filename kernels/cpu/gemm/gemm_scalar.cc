// SPDX-License-Identifier: Apache-2.0
// The definition of correct: one fp32 accumulator per output, k ascending, multiply then add.
#include <algorithm>

#include "common/base/bf16.h"
#include "kernels/cpu/gemm/gemm_isa.h"
#include "kernels/cpu/gemm/packed_bf16.h"

namespace kt::scalar {
namespace {

template <typename X>
void Gemm(const GemmArgs& args, int tile_begin, int tile_end) {
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    const bf16* w = args.w + tile * TileElements(args.k);
    int rows = std::min(kTileRows, args.n - tile * kTileRows);
    for (int t = 0; t < args.tokens; ++t) {
      const X* x = static_cast<const X*>(args.x) + t * args.x_stride;
      float sum[kTileRows] = {};
      for (int c = 0; c < args.k; ++c) {
        const bf16* lane = w + size_t{kTileRows} * 2 * (c / 2) + c % 2;
        for (int r = 0; r < kTileRows; ++r) sum[r] += ToFloat(x[c]) * ToFloat(lane[r * 2]);
      }
      std::copy(sum, sum + rows, args.y + t * args.y_stride + tile * kTileRows);
    }
  }
}

}  // namespace

void GemmBf16(const GemmArgs& args, int tile_begin, int tile_end) noexcept {
  Gemm<bf16>(args, tile_begin, tile_end);
}
void GemmF32(const GemmArgs& args, int tile_begin, int tile_end) noexcept {
  Gemm<float>(args, tile_begin, tile_end);
}

}  // namespace kt::scalar
