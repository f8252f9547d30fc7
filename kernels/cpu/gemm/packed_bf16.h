// SPDX-License-Identifier: Apache-2.0
// The packed form of a BF16 weight matrix W [n, k] (docs/formats/packed_expert.md):
// [ceil(n/16)][ceil(k/2)][16][2] bf16, so that the 16 rows of a tile lie in the lanes of a vector
// and a pair of k inside a lane. Rows and columns that do not exist are zero.
#ifndef KT_KERNELS_CPU_GEMM_PACKED_BF16_H_
#define KT_KERNELS_CPU_GEMM_PACKED_BF16_H_

#include <cstddef>
#include <cstdint>

#include "common/base/bf16.h"

namespace kt {

inline constexpr int kTileRows = 16;

inline int Tiles(int n) { return (n + kTileRows - 1) / kTileRows; }

// Elements of one tile: 16 rows of k, rounded up to whole pairs.
inline size_t TileElements(int k) { return size_t{kTileRows} * 2 * ((k + 1) / 2); }

inline size_t PackedBf16Bytes(int n, int k) { return Tiles(n) * TileElements(k) * sizeof(bf16); }

// Packs n rows of k elements that start row_stride elements apart: a column range [c0, c0 + k) of a
// row-major matrix is packed by passing w + c0. Rows from 16 * t on may be packed by another thread
// into packed + t * TileElements(k). w may be unaligned.
void PackBf16(const bf16* w, int64_t row_stride, int n, int k, bf16* packed) noexcept;

// Reads row `row` (of k elements) back, as bf16 or widened to fp32.
void UnpackRow(const bf16* packed, int n, int k, int row, bf16* out) noexcept;
void UnpackRow(const bf16* packed, int n, int k, int row, float* out) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_PACKED_BF16_H_
