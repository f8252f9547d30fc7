// SPDX-License-Identifier: Apache-2.0
// The codes of packed weights and the constants of their layout, for files of an instruction set
// too: no inline code, no other includes.
#ifndef KT_KERNELS_CPU_GEMM_PACKED_CODE_H_
#define KT_KERNELS_CPU_GEMM_PACKED_CODE_H_

#include <cstdint>

namespace kt {

inline constexpr int kTileRows = 16;
inline constexpr int kUnitBytes = 64;

// A tile's codes are units of 64 bytes, one behind the other along k; a unit holds some columns of
// all 16 rows in the order in which products use them:
enum class PackedCode : uint8_t {
  kBf16,     // 2 columns: [16 rows][2] bf16
  kBf16x2,   // two planes of kBf16 units: value = first + second
  kFp8E4m3,  // 4 columns: [4][2 pairs of columns][4 rows][2] bytes; no code is NaN
  kInt8,     // 4 columns: [16 rows][4] bytes, offset binary
  kInt4,     // 8 columns: [16 rows][8] nibbles from the lowest up, columns 0 2 4 6 1 3 5 7, offset
             // binary
  kFp4E2m1,  // 8 columns: as kInt4, E2M1
};
inline constexpr int kPackedCodes = 6;

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_PACKED_CODE_H_
