// SPDX-License-Identifier: Apache-2.0
// The definition of correct.
#include <cstring>

#include "common/base/bf16.h"
#include "common/base/weight_matrix.h"
#include "kernels/cpu/gemm/gemm_isa.h"
#include "kernels/cpu/gemm/packed_matrix.h"

namespace kt::scalar {
namespace {

struct Table {
  explicit Table(WeightCode code) {
    for (int i = 0; i < 256; ++i) {
      const uint8_t byte = static_cast<uint8_t>(i);
      even[i] = ToBf16(CodeValue(code, &byte));
      odd[i] = ToBf16(CodeValue(code, &byte, true));
    }
  }
  bf16 even[256], odd[256];  // of a byte that holds both of a pair, or either of them
};

// kBytes: what a row has of a pair.
template <int kBytes>
void Decode(const Table& table, const uint8_t* codes, int pairs, uint8_t* out) {
  for (int i = 0; i < pairs * kTileRows; ++i, codes += kBytes) {
    const bf16 pair[2] = {table.even[codes[0]], table.odd[codes[kBytes - 1]]};
    std::memcpy(out + i * sizeof pair, pair, sizeof pair);
  }
}

}  // namespace

void DecodeFp8E4m3(const uint8_t* codes, int pairs, uint8_t* out) noexcept {
  static const Table table(WeightCode::kFp8E4m3);
  Decode<2>(table, codes, pairs, out);
}
void DecodeInt8(const uint8_t* codes, int pairs, uint8_t* out) noexcept {
  static const Table table(WeightCode::kInt8);
  Decode<2>(table, codes, pairs, out);
}
void DecodeInt4(const uint8_t* codes, int pairs, uint8_t* out) noexcept {
  static const Table table(WeightCode::kInt4);
  Decode<1>(table, codes, pairs, out);
}
void DecodeFp4E2m1(const uint8_t* codes, int pairs, uint8_t* out) noexcept {
  static const Table table(WeightCode::kFp4E2m1);
  Decode<1>(table, codes, pairs, out);
}

}  // namespace kt::scalar
