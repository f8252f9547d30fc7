// SPDX-License-Identifier: Apache-2.0
#include "worker/pack_stored.h"

#include <algorithm>

namespace kt {

void PackParallel(const MatrixView& view, const PackedFormat& format, uint8_t* packed,
                  Parallel& parallel) {
  constexpr int kTilesPerTask = 32;
  const int tiles = Tiles(view.n);
  parallel.Run((tiles + kTilesPerTask - 1) / kTilesPerTask, [&](int task, int) {
    Pack(view, format, task * kTilesPerTask, std::min(tiles, (task + 1) * kTilesPerTask), packed);
  });
}

}  // namespace kt
