// SPDX-License-Identifier: Apache-2.0
// A shard, and an index, as bytes: what is accepted lies inside the file and fits its shape.
#include <cstdint>
#include <cstdlib>

#include "common/weights/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const uint8_t> file(data, size);
  if (auto entries = kt::ParseSafetensors(file); entries.ok()) {
    size_t total = 0;
    for (const kt::SafetensorsEntry& e : *entries) {
      size_t bytes = kt::DTypeBytes(e.dtype);
      for (int64_t n : e.shape) bytes *= static_cast<size_t>(n);
      bool inside = e.data.data() >= data && e.data.data() + e.data.size() <= data + size;
      if (!inside || bytes != e.data.size()) std::abort();
      total += bytes;
    }
    if (total + 8 > size) std::abort();
  }
  auto index = kt::ParseSafetensorsIndex({reinterpret_cast<const char*>(data), size});
  if (!index.ok()) return 0;
  for (const auto& [tensor, shard] : *index) {
    if (shard.empty() || shard.find('/') != std::string::npos) std::abort();
  }
  return 0;
}
