// SPDX-License-Identifier: Apache-2.0
// The reference: one row of W at a time, a block of its columns as fp32 for all tokens.
#include <algorithm>
#include <bit>

#include "common/base/bf16.h"
#include "common/base/weight_matrix.h"
#include "kernels/cpu/gemm/gemm_isa.h"
#include "kernels/cpu/gemm/packed_matrix.h"

namespace kt::scalar {
namespace {

float ScaleOf(const ProductArgs& args, int row, int group) {
  const int at = args.lanes == 1 ? group : group * kTileRows + row % kTileRows;
  const uint8_t* scales = args.scales + row / kTileRows * args.tile_bytes;
  switch (args.scale) {
    case PackedScale::kF32:
      return ScaleValue(ScaleType::kF32, scales + at * 4);
    case PackedScale::kBf16:
      return ScaleValue(ScaleType::kBf16, scales + at * 2);
    case PackedScale::kE8m0:
      return ScaleValue(ScaleType::kE8m0, scales + at);
    case PackedScale::kOne:
      break;
  }
  return 1.0f;
}

float X(const ProductArgs& args, int token, int column) {
  const int64_t at = token * args.x_stride + column;
  return args.x_is_bf16 ? ToFloat(static_cast<const bf16*>(args.x)[at])
                        : static_cast<const float*>(args.x)[at];
}

void Product(PackedCode code, WeightCode number, const ProductArgs& args, int tile_begin,
             int tile_end) {
  const bool scaled = code != PackedCode::kBf16;
  const int unit = UnitColumns(code);
  for (int row = tile_begin * kTileRows; row < std::min(args.n, tile_end * kTileRows); ++row) {
    const uint8_t* tile = args.w + row / kTileRows * args.tile_bytes;
    for (int begin = 0, end; begin < args.k; begin = end) {
      const int group = (args.origin + begin) / args.group;
      const int64_t group_end = int64_t{args.group} * (group + 1) - args.origin;
      end = static_cast<int>(
          std::min<int64_t>({begin + kScaledColumns, scaled ? group_end : args.k, args.k}));
      float w[kScaledColumns];
      for (int c = begin; c < end; ++c) {
        const UnitPlace place = PlaceInUnit(code, row % kTileRows, c % unit);
        w[c - begin] = CodeValue(number, tile + c / unit * kUnitBytes + place.byte, place.high);
      }
      for (int t = 0; t < args.tokens; ++t) {
        float& y = args.y[t * args.y_stride + row];
        if (begin == 0 && !args.add) y = 0;
        float sum = scaled ? 0.0f : y;
        for (int c = begin; c < end; ++c) sum += X(args, t, c) * w[c - begin];
        y = scaled ? ScaleOf(args, row, group) * sum + y : sum;
      }
    }
  }
}

}  // namespace

void ProductBf16(const ProductArgs& args, int tile_begin, int tile_end) noexcept {
  Product(PackedCode::kBf16, WeightCode::kBf16, args, tile_begin, tile_end);
}
void ProductFp8E4m3(const ProductArgs& args, int tile_begin, int tile_end) noexcept {
  Product(PackedCode::kFp8E4m3, WeightCode::kFp8E4m3, args, tile_begin, tile_end);
}
void ProductInt8(const ProductArgs& args, int tile_begin, int tile_end) noexcept {
  Product(PackedCode::kInt8, WeightCode::kInt8, args, tile_begin, tile_end);
}
void ProductInt4(const ProductArgs& args, int tile_begin, int tile_end) noexcept {
  Product(PackedCode::kInt4, WeightCode::kInt4, args, tile_begin, tile_end);
}
void ProductFp4E2m1(const ProductArgs& args, int tile_begin, int tile_end) noexcept {
  Product(PackedCode::kFp4E2m1, WeightCode::kFp4E2m1, args, tile_begin, tile_end);
}

}  // namespace kt::scalar
