// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_format.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/bf16.h"
#include "common/base/status.h"

namespace kt::cli {
namespace {

constexpr BenchFormat kFormats[] = {
    {"bf16", WeightCode::kBf16, ScaleType::kNone},
    {"fp8-block", WeightCode::kFp8E4m3, ScaleType::kF32, 128, 128},
    {"fp8-channel", WeightCode::kFp8E4m3, ScaleType::kF32},
    {"int8", WeightCode::kInt8, ScaleType::kBf16},
    {"int4-g32", WeightCode::kInt4, ScaleType::kBf16, 1, 32},
    {"int4-g128", WeightCode::kInt4, ScaleType::kBf16, 1, 128},
    {"mxfp4", WeightCode::kFp4E2m1, ScaleType::kE8m0, 1, 32},
    {"amxint8", WeightCode::kBf16, ScaleType::kNone, 1, 0, Multiply::kInt8, PackedCode::kInt8},
    {"amxint4", WeightCode::kBf16, ScaleType::kNone, 1, 0, Multiply::kInt8, PackedCode::kInt4},
};

constexpr int kSizeExponent = -6;  // of the values

// log2 of the size of the numbers that random codes stand for.
int CodeExponent(WeightCode code) {
  switch (code) {
    case WeightCode::kFp8E4m3:
      return 7;
    case WeightCode::kInt8:
      return 6;
    case WeightCode::kInt4:
    case WeightCode::kFp4E2m1:
      return 2;
    default:
      return kSizeExponent;
  }
}

void FillCodes(WeightCode code, std::vector<uint8_t>& codes, std::mt19937_64& rng) {
  uint64_t bits = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    if (i % 8 == 0) bits = rng();
    codes[i] = static_cast<uint8_t>(bits >> i % 8 * 8);
  }
  if (code == WeightCode::kFp8E4m3) {
    for (uint8_t& c : codes) {
      if ((c & 0x7f) == 0x7f) c ^= 1;  // NaN
    }
  } else if (code == WeightCode::kBf16) {
    for (size_t i = 1; i < codes.size(); i += 2) {
      codes[i] = (codes[i] & 0x80) | 0x3c;  // +-[2^-7, 2^-5)
    }
  }
}

// The number of this exponent, times [1, 2) where the type has a mantissa.
void StoreScale(ScaleType type, int exponent, std::mt19937_64& rng, uint8_t* at) {
  const float value = std::ldexp(1.0f + static_cast<float>(rng() % 128) / 128, exponent);
  const bf16 half = ToBf16(value);
  switch (type) {
    case ScaleType::kF32:
      std::memcpy(at, &value, sizeof(value));
      break;
    case ScaleType::kBf16:
      std::memcpy(at, &half, sizeof(half));
      break;
    case ScaleType::kE8m0:
      *at = static_cast<uint8_t>(127 + exponent);
      break;
    case ScaleType::kNone:
    case ScaleType::kF16:  // in no row of the table
      break;
  }
}

}  // namespace

std::span<const BenchFormat> BenchFormats() { return kFormats; }

absl::StatusOr<const BenchFormat*> FindBenchFormat(const std::string& name) {
  std::vector<std::string> names;
  for (const BenchFormat& format : kFormats) {
    if (name == format.name) return &format;
    names.emplace_back(format.name);
  }
  return InvalidArgument("--format {}: use one of {}", name, fmt::join(names, ", "));
}

MatrixView ViewOf(const BenchFormat& format, int n, int k) {
  MatrixView view;
  view.n = n;
  view.k = k;
  view.code = format.code;
  view.code_row_stride = (int64_t{k} * CodeBits(format.code) + 7) / 8;
  if (format.scale == ScaleType::kNone) return view;
  view.scale = format.scale;
  view.block_rows = format.block_rows;
  view.block_columns = format.block_columns == 0 ? k : format.block_columns;
  view.scale_column_stride = ScaleBytes(format.scale);
  view.scale_row_stride =
      (k + view.block_columns - 1) / view.block_columns * view.scale_column_stride;
  return view;
}

RandomMatrix::RandomMatrix(const BenchFormat& format, int n, int k, std::mt19937_64& rng)
    : view_(ViewOf(format, n, k)) {
  codes_.resize(n * view_.code_row_stride);
  FillCodes(format.code, codes_, rng);
  view_.codes = codes_.data();
  if (format.scale == ScaleType::kNone) return;
  scales_.resize((n + view_.block_rows - 1) / view_.block_rows * view_.scale_row_stride);
  for (size_t at = 0; at < scales_.size(); at += ScaleBytes(format.scale))
    StoreScale(format.scale, kSizeExponent - CodeExponent(format.code), rng, scales_.data() + at);
  view_.scales = scales_.data();
}

}  // namespace kt::cli
