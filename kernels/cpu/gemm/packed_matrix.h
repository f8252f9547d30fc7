// SPDX-License-Identifier: Apache-2.0
// The packed form of a weight matrix W [n, k] (docs/formats/packed_expert.md): tiles of 16 rows,
// each contiguous, so that the rows of a tile lie in the lanes of a vector and a pair of k inside a
// lane. A quantised matrix keeps its codes and scales. Rows and columns that do not exist are zero.
#ifndef KT_KERNELS_CPU_GEMM_PACKED_MATRIX_H_
#define KT_KERNELS_CPU_GEMM_PACKED_MATRIX_H_

#include <cstddef>
#include <cstdint>

#include "common/base/bf16.h"
#include "common/base/weight_matrix.h"
#include "kernels/cpu/gemm/packed_code.h"

namespace kt {

inline int Tiles(int n) { return (n + kTileRows - 1) / kTileRows; }

// Behind its codes a tile has its scales [PackedGroups()][lanes]. Column c belongs to group
// (origin + c) / group; groups begin where units do.
struct PackedFormat {
  PackedCode code = PackedCode::kBf16;
  ScaleType scale = ScaleType::kNone;  // never kF16
  int lanes = 0;                       // scales per group: 0 none, 1 for all rows of a tile, 16
  int group = 0;                       // columns per scale; 0 without scales
  int origin = 0;                      // columns of the first group that lie before column 0
  // Products take x rounded to int8 with a scale per row (kernels/cpu/int8_gemm). For kInt8 and
  // kInt4 with one F32 scale per row of the matrix.
  bool int8_x = false;

  bool operator==(const PackedFormat&) const = default;
};

struct PackedMatrix {
  const uint8_t* data = nullptr;  // PackedBytes; aligned to 64 for speed
  const float* bias = nullptr;    // [n] or null; products do not add it, their callers do
  int n = 0;
  int k = 0;
  PackedFormat format;
};

// The form for a checkpoint's matrix: its own codes and scales. Where packed tiles cannot hold them
// (F16 and F32; a scale on BF16; a group that begins inside a unit, as with a scale per column; 4
// bits from an odd first_column) the values are multiplied out: to kBf16x2, which keeps F16
// exactly and others to 2^-17 of each value, if `exact`, else rounded to kBf16.
PackedFormat PackedFormatOf(const MatrixView& view, bool exact);

// The form for the kt-methods AMXINT8 and AMXINT4 (`code` kInt8 or kInt4), for k <=
// kInt8XColumnsMax. Packing rounds the values of any matrix anew, with one scale per row of the
// view (QuantizeRow): kInt8 to 127 levels; kInt4 to 112 levels, then to multiples of 16 of these,
// ties away from zero, which are kept divided by 16, -7 ... 7.
PackedFormat Int8XFormat(PackedCode code, int k);
inline constexpr int kInt8XColumnsMax = 1 << 17;  // 2^17 * 128 * 127 < 2^31

int UnitColumns(PackedCode code);
// Where a unit has the code of a row and a column < UnitColumns: the byte, and whether it is the
// upper nibble.
struct UnitPlace {
  int byte;
  bool high;
};
UnitPlace PlaceInUnit(PackedCode code, int row, int column);
// Of all codes of a tile.
size_t PackedCodeBytes(int k, PackedCode code);
// Scale groups along k; 0 without scales.
int PackedGroups(int k, const PackedFormat& format);
// A multiple of 64.
size_t PackedTileBytes(int k, const PackedFormat& format);
size_t PackedBytes(int n, int k, const PackedFormat& format);

// Packs tiles [tile_begin, tile_end) of the view to their places in the matrix that starts at
// `packed`. Thread-safe on disjoint ranges. Fast where rows are contiguous and codes keep their
// form. `format` is PackedFormatOf(view, ...) or Int8XFormat(..., view.k). False: a code of
// kFp8E4m3 is NaN, which products do not know; or, with int8_x, a value is not finite.
[[nodiscard]] bool Pack(const MatrixView& view, const PackedFormat& format, int tile_begin,
                        int tile_end, uint8_t* packed) noexcept;

// Reads row `row` (of k elements) back: number(code) * scale in fp32, rounded where bf16 is asked.
void UnpackRow(const PackedMatrix& matrix, int row, float* out) noexcept;
void UnpackRow(const PackedMatrix& matrix, int row, bf16* out) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_PACKED_MATRIX_H_
