// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/machine_limits.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

namespace kt::cli {

double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

TimeLimit LimitOf(double bytes, double operations, const MachineRates& rates) {
  const double read = bytes / rates.bytes_per_s;
  const double compute = operations / rates.operations_per_s;
  return {std::max(read, compute), read >= compute};
}

size_t CacheBytes(const topology::Topology& topology) {
  constexpr size_t kUnknown = size_t{32} << 20;
  if (topology.caches().empty()) return kUnknown;
  const topology::Cache& last = topology.caches().back();
  return static_cast<size_t>(last.bytes) * static_cast<size_t>(last.instances);
}

size_t MachineProbe::Bytes(const topology::Topology& topology) {
  return std::max(kBytesMin, kCaches * CacheBytes(topology));
}

MachineProbe::MachineProbe(const topology::Topology& topology, int memory_node, Parallel& parallel)
    : buffer_(Bytes(topology)) {
  madvise(buffer_.data(), buffer_.size(), MADV_HUGEPAGE);
  // Soft: unbound pages lie on the node of the thread that touches them first.
  (void)topology.BindMemory(buffer_.data(), buffer_.size(), memory_node);
  constexpr size_t kPart = size_t{2} << 20;
  const int parts = static_cast<int>((buffer_.size() + kPart - 1) / kPart);
  parallel.Run(parts, [&](int part, int) {
    const size_t at = part * kPart;
    std::memset(buffer_.data() + at, 1, std::min(kPart, buffer_.size() - at));
  });
}

void MachineProbe::Measure(Multiply kind, Isa isa, Parallel& parallel, MachineRates* rates) {
  constexpr long kRounds = 1'000'000;
  const int threads = parallel.threads();
  const size_t window = buffer_.size() / kWindows;
  const long part = static_cast<long>(window / threads / 256 * 256);
  std::vector<float> sums(threads);
  for (int streams : {1, 2, 4}) {
    const char* data = buffer_.As<char>() + window_ * window;
    const double start = SecondsNow();
    parallel.Run(threads, [&](int task, int) {
      ReadMemory(data + task * part, part, streams, &sums[task]);
    });
    rates->bytes_per_s =
        std::max(rates->bytes_per_s, static_cast<double>(threads) * part / (SecondsNow() - start));
    window_ = (window_ + 1) % kWindows;
  }
  std::vector<double> done(threads);
  const double start = SecondsNow();
  parallel.Run(threads,
               [&](int task, int) { done[task] = MultiplyAdds(kind, isa, kRounds, &sums[task]); });
  double operations = 0;
  for (double d : done) operations += d;
  rates->operations_per_s = std::max(rates->operations_per_s, operations / (SecondsNow() - start));
}

}  // namespace kt::cli
