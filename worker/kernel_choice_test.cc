// SPDX-License-Identifier: Apache-2.0
#include "worker/kernel_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "common/base/status.h"

namespace kt {
namespace {

constexpr PackedMatrix kLike{
    .n = 64, .k = 512, .format = {PackedCode::kInt4, ScaleType::kBf16, 16, 32}};

TEST(KernelChoiceTest, TwoRowsAreMeasuredAndComparedInEveryFormat) {
  if (!IsaSupported(Isa::kAvx2)) GTEST_SKIP() << "NOT TESTED: the CPU lacks AVX2";
  for (PackedFormat format :
       {PackedFormat{}, kLike.format, PackedFormat{PackedCode::kFp8E4m3, ScaleType::kF32, 1, 128},
        PackedFormat{PackedCode::kInt8, ScaleType::kF32, 16, 512},
        PackedFormat{PackedCode::kFp4E2m1, ScaleType::kE8m0, 16, 32}}) {
    const PackedMatrix like{.n = 16, .k = 512, .format = format};
    const auto choice = FasterKernels(Isa::kAvx2, Isa::kScalar, like);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_THAT(choice->reason, testing::ContainsRegex("96 rows x 256 x 512: avx2 .* ms, scalar"));
  }
}

TEST(KernelChoiceTest, WithoutAmxOrWithDeterminismTheSelectedRowStays) {
  unsetenv("KT_FORCE_ISA");
  for (bool deterministic : {true, false}) {
    if (!deterministic && IsaSupported(Isa::kAmx)) continue;
    const auto choice = ChooseKernels({*SelectIsa(), deterministic, true, kLike});
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->isa, *SelectIsa());
    EXPECT_EQ(choice->reason, "");
  }
}

TEST(KernelChoiceTest, AmxIsChosenOnlyWhereBitsMayDiffer) {
  const auto refused = ChooseKernels({Isa::kAmx, true, true, kLike});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Message(refused.status()), testing::HasSubstr("--deterministic off"));
  if (!IsaSupported(Isa::kAmx)) GTEST_SKIP() << "NOT TESTED: the choice itself, the CPU lacks AMX";
  const auto forced = ChooseKernels({Isa::kAmx, false, true, kLike});
  ASSERT_TRUE(forced.ok()) << forced.status();
  EXPECT_EQ(forced->isa, Isa::kAmx);
  const auto free = ChooseKernels({*SelectIsa(), false, true, kLike});
  ASSERT_TRUE(free.ok()) << free.status();
  EXPECT_THAT(free->reason, testing::ContainsRegex("amx .* ms, avx512bf16 .* ms"));
}

}  // namespace
}  // namespace kt
