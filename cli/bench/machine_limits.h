// SPDX-License-Identifier: Apache-2.0
// What this machine reads and multiplies at best, measured beside the kernels, and the bound on a
// kernel that follows.
#ifndef KT_CLI_BENCH_MACHINE_LIMITS_H_
#define KT_CLI_BENCH_MACHINE_LIMITS_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "common/base/aligned_buffer.h"
#include "common/base/parallel.h"
#include "common/topology/topology.h"
#include "kernels/cpu/machine_peak/machine_peak.h"

namespace kt::cli {

double SecondsNow();  // of a steady clock

struct MachineRates {
  double bytes_per_s = 0;       // read from memory
  double operations_per_s = 0;  // two a multiply-add
};

// The least time for reading so many bytes once and doing so many operations, which overlap.
struct TimeLimit {
  double seconds;
  bool memory;  // reading takes longer
};
TimeLimit LimitOf(double bytes, double operations, const MachineRates& rates);

// Bytes of all last-level caches; a stand-in where they are not known.
size_t CacheBytes(const topology::Topology& topology);

// One thread at a time, the one that calls `parallel`.
class MachineProbe {
 public:
  // Takes Bytes() of memory, in huge pages where the kernel gives them, on `memory_node` (-1: where
  // the threads touch it).
  MachineProbe(const topology::Topology& topology, int memory_node, Parallel& parallel);
  static size_t Bytes(const topology::Topology& topology);

  // Measures once, in milliseconds, with all threads of `parallel`, and raises *rates to it.
  void Measure(Multiply kind, Isa isa, Parallel& parallel, MachineRates* rates);

 private:
  static constexpr size_t kCaches = 4, kBytesMin = size_t{256} << 20;
  static constexpr int kWindows = 4;

  AlignedBuffer buffer_;
  int window_ = 0;  // moves through the buffer, so that what is read is never in a cache
};

}  // namespace kt::cli

#endif  // KT_CLI_BENCH_MACHINE_LIMITS_H_
