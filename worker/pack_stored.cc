// SPDX-License-Identifier: Apache-2.0
#include "worker/pack_stored.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

namespace kt {

bool PackParallel(const MatrixView& view, const PackedFormat& format, uint8_t* packed,
                  Parallel& parallel) {
  constexpr int kTilesPerTask = 32;
  const int tiles = Tiles(view.n);
  std::atomic<bool> numbers{true};
  parallel.Run((tiles + kTilesPerTask - 1) / kTilesPerTask, [&](int task, int) {
    if (!Pack(view, format, task * kTilesPerTask, std::min(tiles, (task + 1) * kTilesPerTask),
              packed))
      numbers = false;
  });
  return numbers;
}

absl::Status NanCode(const TensorInfo& codes) {
  return absl::DataLossError(
      fmt::format("{}: has a weight that is not a number{}: the file is damaged, fetch it again",
                  codes.name, codes.dtype == DType::kF8E4M3 ? " (FP8 0x7f or 0xff)" : ""));
}

}  // namespace kt
