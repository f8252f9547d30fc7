// SPDX-License-Identifier: Apache-2.0
// The weight formats that `kt bench kernels` knows, in one table.
#ifndef KT_CLI_BENCH_BENCH_FORMAT_H_
#define KT_CLI_BENCH_BENCH_FORMAT_H_

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/weight_matrix.h"
#include "kernels/cpu/gemm/packed_matrix.h"
#include "kernels/cpu/machine_peak/machine_peak.h"

namespace kt::cli {

struct BenchFormat {
  const char* name;
  WeightCode code;
  ScaleType scale;
  int block_rows = 1;
  int block_columns = 0;                // 0: one scale for the whole row
  Multiply multiply = Multiply::kBf16;  // what bounds its arithmetic
  // What packing rounds the values to, for products with int8 activations (Int8XFormat).
  std::optional<PackedCode> int8_x = std::nullopt;
};

std::span<const BenchFormat> BenchFormats();

// InvalidArgument: no such format, with those there are.
absl::StatusOr<const BenchFormat*> FindBenchFormat(const std::string& name);

// Strides and blocks of an [n, k] matrix in the format, without its bytes.
MatrixView ViewOf(const BenchFormat& format, int n, int k);

// A matrix of random values, about 0.015 in size, in a format: every code that is a number occurs.
class RandomMatrix {
 public:
  RandomMatrix(const BenchFormat& format, int n, int k, std::mt19937_64& rng);
  const MatrixView& view() const { return view_; }

 private:
  std::vector<uint8_t> codes_, scales_;
  MatrixView view_;  // of the two vectors
};

}  // namespace kt::cli

#endif  // KT_CLI_BENCH_BENCH_FORMAT_H_
