// SPDX-License-Identifier: Apache-2.0
// PyTorch's statistics files as anybody may write them: zip, pickle and storages.
#include <cstdlib>

#include "common/placement/expert_counts.h"
#include "common/placement/pickle.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const uint8_t> bytes(data, size);
  if (auto counts = kt::TorchExpertCounts(bytes); counts.ok()) {
    for (const auto& layer : *counts) {
      if (layer.empty() || layer.size() != (*counts)[0].size()) std::abort();
    }
  }
  if (auto pickle = kt::Pickle::Parse(bytes); pickle.ok())
    (void)pickle->Find(pickle->root(), "logical_count");
  return 0;
}
