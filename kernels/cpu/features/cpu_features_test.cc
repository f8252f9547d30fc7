// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/features/cpu_features.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "common/base/status.h"

namespace kt {
namespace {

class ForcedIsa {
 public:
  explicit ForcedIsa(const char* name) { setenv("KT_FORCE_ISA", name, 1); }
  ~ForcedIsa() { unsetenv("KT_FORCE_ISA"); }
};

TEST(CpuFeaturesTest, FlagsAgreeWithTheKernel) {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line, model, flags;
  while (std::getline(cpuinfo, line) && flags.empty()) {
    if (line.rfind("model name", 0) == 0) model = line;
    if (line.rfind("flags", 0) == 0) flags = line;
  }
  // A user-mode emulator passes the host's file through.
  if (flags.empty() || model.find(CpuModelName()) == std::string::npos)
    GTEST_SKIP() << "/proc/cpuinfo does not describe this CPU";
  std::istringstream words(flags);
  std::set<std::string> known;
  for (std::string word; words >> word;) known.insert(word == "avx512vbmi" ? "avx512_vbmi" : word);
  for (const auto& [name, present] : CpuFlagList()) {
    // A kernel older than a flag does not list it, so only presence is compared.
    if (known.count(name)) {
      EXPECT_TRUE(present) << name;
    }
  }
}

TEST(CpuFeaturesTest, RowsAreNested) {
  EXPECT_TRUE(IsaSupported(Isa::kScalar));
  for (size_t i = 1; i < std::size(kAllIsas); ++i) {
    if (IsaSupported(kAllIsas[i])) {
      EXPECT_TRUE(IsaSupported(kAllIsas[i - 1])) << IsaName(kAllIsas[i]);
    }
  }
}

TEST(CpuFeaturesTest, SelectsTheBestSupportedRow) {
  unsetenv("KT_FORCE_ISA");
  absl::StatusOr<Isa> best = SelectIsa();
  ASSERT_TRUE(best.ok());
  for (Isa isa : kAllIsas) {
    if (BatchInvariant(isa)) {
      EXPECT_EQ(IsaSupported(isa), isa <= *best) << IsaName(isa);
    }
  }
  EXPECT_TRUE(BatchInvariant(*best));
  EXPECT_FALSE(BatchInvariant(Isa::kAmx));
}

TEST(CpuFeaturesTest, ForcedRowIsTakenOrRefusedWithTheReason) {
  for (Isa isa : kAllIsas) {
    ForcedIsa forced(IsaName(isa));
    absl::StatusOr<Isa> selected = SelectIsa();
    if (IsaSupported(isa)) {
      ASSERT_TRUE(selected.ok()) << selected.status();
      EXPECT_EQ(*selected, isa);
    } else {
      EXPECT_EQ(selected.status().code(), absl::StatusCode::kUnimplemented);
      EXPECT_THAT(Message(selected.status()), testing::AllOf(testing::HasSubstr(IsaName(isa)),
                                                             testing::HasSubstr("lacks ")));
    }
  }
  ForcedIsa forced("avx1024");
  EXPECT_EQ(SelectIsa().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(SelectIsa().status()), testing::HasSubstr("KT_FORCE_ISA=avx1024"));
}

TEST(CpuFeaturesTest, ModelNameIsTrimmedText) {
  std::string name = CpuModelName();
  ASSERT_FALSE(name.empty());
  EXPECT_NE(name.front(), ' ');
  EXPECT_NE(name.back(), ' ');
}

}  // namespace
}  // namespace kt
