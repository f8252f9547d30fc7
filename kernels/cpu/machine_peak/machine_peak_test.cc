// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/machine_peak/machine_peak.h"

#include <gtest/gtest.h>

#include "common/base/aligned_buffer.h"

namespace kt {
namespace {

TEST(MachinePeakTest, EveryLoopCountsItsOperations) {
  for (Isa isa : kAllIsas) {
    if (!IsaSupported(isa)) continue;
    for (Multiply kind : {Multiply::kFp32, Multiply::kBf16, Multiply::kInt8}) {
      float sum = 0;
      const double once = MultiplyAdds(kind, isa, 1, &sum);
      EXPECT_GE(once, 80) << IsaName(isa);
      EXPECT_EQ(MultiplyAdds(kind, isa, 1000, &sum), 1000 * once) << IsaName(isa);
      EXPECT_NE(sum, 0) << IsaName(isa) << ": nothing was summed";
    }
  }
}

TEST(MachinePeakTest, EveryStreamReadsTheWholeRange) {
  constexpr long kBytes = 1 << 14;
  const AlignedBuffer buffer(kBytes);
  for (int streams : {1, 2, 4}) {
    for (long at : {0L, kBytes / 2 - 64, kBytes / 2, kBytes - 64}) {
      float sum = 0;
      buffer.As<int32_t>()[at / 4] = 3;
      ReadMemory(buffer.As<char>(), kBytes, streams, &sum);
      EXPECT_EQ(sum, 3) << streams << " streams, byte " << at;
      buffer.As<int32_t>()[at / 4] = 0;
    }
  }
}

}  // namespace
}  // namespace kt
