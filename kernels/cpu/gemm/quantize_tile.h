// SPDX-License-Identifier: Apache-2.0
#ifndef KT_KERNELS_CPU_GEMM_QUANTIZE_TILE_H_
#define KT_KERNELS_CPU_GEMM_QUANTIZE_TILE_H_

#include <vector>

#include "kernels/cpu/gemm/packed_matrix.h"

namespace kt {

// Rows of a matrix rounded as Int8XFormat says, in the form of a checkpoint: room for one tile.
class QuantizedTile {
 public:
  QuantizedTile(PackedCode code, int k);

  // Rows [first_row, first_row + count) of `view`, count <= kTileRows; valid until the next call.
  MatrixView Of(const MatrixView& view, int first_row, int count);
  // False: a value of these rows was NaN or infinite.
  bool finite() const { return finite_; }

 private:
  const PackedCode code_;
  const int64_t row_bytes_;
  std::vector<float> values_;  // of a row
  std::vector<int8_t> row_;    // its codes
  std::vector<uint8_t> codes_;
  float scales_[kTileRows];
  bool finite_ = true;
};

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_QUANTIZE_TILE_H_
