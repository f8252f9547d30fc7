// SPDX-License-Identifier: Apache-2.0
// Each kernel against the host's scalar row on the same arguments; built for the shim and, where
// nvcc is, for a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "kernels/cpu/simd/testing.h"
#include "kernels/cuda/rms_norm.h"
#include "kernels/cuda/rope.h"
#include "kernels/cuda/router_topk.h"
#include "kernels/cuda/testing.h"

namespace kt::cuda {
namespace {

class CudaKernelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!DevicePresent()) GTEST_SKIP() << "no CUDA device here";
    stream_ = std::make_unique<TestStream>();
  }
  DeviceBytes Upload(const Activations& a, bool is_bf16) {
    return DeviceBytes(*stream_, a.data(), a.size() * (is_bf16 ? 2 : 4));
  }

  std::unique_ptr<TestStream> stream_;
};

struct NormShape {
  int rows, groups, n;
};

TEST_F(CudaKernelsTest, RmsNormEqualsTheHost) {
  TestRandom random(71);
  std::vector<NormShape> shapes = {{0, 1, 8}, {1, 1, 1}, {1, 1, 8192}, {3, 96, 128}, {2, 1, 257}};
  while (shapes.size() < 220)
    shapes.push_back({random.Int(0, 4), random.Int(1, 3), random.Int(1, 700)});
  for (size_t trial = 0; trial < shapes.size(); ++trial) {
    const auto [rows, groups, n] = shapes[trial];
    const bool is_bf16 = trial % 2 == 0;
    const int64_t x_stride = int64_t{groups} * n + random.Int(0, 3),
                  y_stride = int64_t{groups} * n + random.Int(0, 3);
    const Activations x(random.Normals(rows * x_stride, 3), is_bf16);
    Activations want(rows * y_stride, is_bf16), got = want;
    const std::vector<float> weight = random.Normals(n);
    RmsNormArgs args{x.data(), x_stride, want.data(), y_stride, weight.data(),
                     rows,     groups,   n,           1e-6f,    is_bf16};
    kt::RmsNorm(Isa::kScalar, args);
    const DeviceBytes x_device = Upload(x, is_bf16), y_device = Upload(got, is_bf16),
                      weight_device(*stream_, weight);
    args.x = x_device.data();
    args.y = y_device.data();
    args.weight = weight_device.As<float>();
    ASSERT_TRUE(RmsNorm(args, *stream_).ok());
    y_device.Read(got.data());
    for (size_t i = 0; i < got.size(); ++i) {
      // Two sums of n squares in different orders; a value near the middle between two bf16 may
      // round either way.
      ASSERT_NEAR(got.At(i), want.At(i),
                  std::abs(want.At(i)) *
                      (2 * (is_bf16 ? ActivationEpsilon(true) : 0) + (n / 4 + 16) * 0x1p-23))
          << "n " << n;
    }
  }
}

TEST_F(CudaKernelsTest, RopeEqualsTheHost) {
  TestRandom random(72);
  for (int trial = 0; trial < 220; ++trial) {
    const int tokens = trial < 2 ? trial : random.Int(0, 4),
              heads = trial == 2 ? 96 : random.Int(1, 6),
              half = trial == 2 ? 64 : random.Int(1, 70);
    const int rotary = 2 * half, head_dim = rotary + random.Int(0, 9);
    const int64_t stride = int64_t{heads} * head_dim + random.Int(0, 5);
    const bool is_bf16 = trial % 2 == 0;
    std::vector<int32_t> positions(tokens);
    for (int32_t& p : positions) p = random.Int(0, 100000);
    std::vector<float> inv_freq = random.Normals(half), cos(tokens * half), sin(tokens * half);
    RopeTable(positions.data(), tokens, inv_freq.data(), half, 1, cos.data(), sin.data());
    Activations want(random.Normals(tokens * stride), is_bf16), got = want;
    const DeviceBytes x_device = Upload(got, is_bf16), cos_device(*stream_, cos),
                      sin_device(*stream_, sin);
    RopeArgs args{want.data(), stride,   cos.data(), sin.data(),    tokens,
                  heads,       head_dim, rotary,     trial % 4 < 2, is_bf16};
    kt::ApplyRope(Isa::kScalar, args);
    args.x = x_device.data();
    args.cos = cos_device.As<float>();
    args.sin = sin_device.As<float>();
    ASSERT_TRUE(ApplyRope(args, *stream_).ok());
    x_device.Read(got.data());
    for (size_t i = 0; i < got.size(); ++i) {
      // Fused here, a rounded product there: the difference is relative to the terms, which are
      // below 8.
      ASSERT_NEAR(got.At(i), want.At(i),
                  (is_bf16 ? std::abs(want.At(i)) * 2 * ActivationEpsilon(true) : 0) + 8 * 0x1p-23);
    }
  }
}

TEST_F(CudaKernelsTest, RouterTopkEqualsTheHost) {
  TestRandom random(73);
  for (int trial = 0; trial < 260; ++trial) {
    const int groups = trial % 3 == 0 ? random.Int(2, 32) : 1,
              size = groups > 1 ? random.Int(1, 12) : random.Int(1, 300);
    const int experts = trial == 1 ? kRouterExpertsMax : groups * size,
              topk_groups = random.Int(1, groups);
    const int top_k = trial == 1
                          ? kRouterLanes
                          : random.Int(1, std::min({topk_groups * size, experts, kRouterLanes}));
    const int tokens = trial < 4 ? trial : random.Int(0, 4);
    const int64_t stride = experts + random.Int(0, 3);
    // Multiples of 1/8: scores are equal or clearly apart, so that the choice does not hang on the
    // last bit of exp.
    std::vector<float> logits = random.Normals(tokens * stride, 2),
                       bias = random.Normals(experts, 0.3f);
    for (float& x : logits) x = std::round(x * 8) / 8;
    for (float& x : bias) x = std::round(x * 8) / 8 + (&x - bias.data()) * 1e-4f;
    std::vector<int32_t> want_ids(tokens * top_k), got_ids(tokens * top_k, -7);
    std::vector<float> want_weights(tokens * top_k), got_weights(tokens * top_k, -7);
    RouterTopkArgs args{logits.data(),
                        stride,
                        trial % 2 ? bias.data() : nullptr,
                        want_ids.data(),
                        want_weights.data(),
                        tokens,
                        experts,
                        top_k,
                        groups,
                        topk_groups,
                        trial % 4 < 2,
                        trial % 5 < 3,
                        2.5f};
    kt::RouterTopk(args);
    const DeviceBytes logits_device(*stream_, logits), bias_device(*stream_, bias),
        ids_device(*stream_, got_ids), weights_device(*stream_, got_weights);
    args.logits = logits_device.As<float>();
    if (args.correction_bias != nullptr) args.correction_bias = bias_device.As<float>();
    args.ids = ids_device.As<int32_t>();
    args.weights = weights_device.As<float>();
    ASSERT_TRUE(RouterTopk(args, *stream_).ok());
    ids_device.Read(got_ids.data());
    weights_device.Read(got_weights.data());
    ASSERT_EQ(got_ids, want_ids) << "trial " << trial;
    for (size_t i = 0; i < got_weights.size(); ++i)
      ASSERT_NEAR(got_weights[i], want_weights[i],
                  std::abs(want_weights[i]) * (experts + 16) * 0x1p-23);
  }
}

TEST_F(CudaKernelsTest, RouterTopkOnHostileLogitsGivesDistinctIdsInRange) {
  TestRandom random(74);
  const float inf = std::numeric_limits<float>::infinity(),
              hostile[] = {std::nanf(""), inf, -inf, 0, 3e38f, 1};
  for (int trial = 0; trial < 100; ++trial) {
    const int experts = 48, top_k = random.Int(1, 32);
    std::vector<float> logits(experts), weights(top_k);
    std::vector<int32_t> ids(top_k, -7);
    for (float& x : logits) x = hostile[random.Int(0, trial < 5 ? 0 : 5)];
    const DeviceBytes logits_device(*stream_, logits), ids_device(*stream_, ids),
        weights_device(*stream_, weights);
    ASSERT_TRUE(RouterTopk({logits_device.As<float>(), experts, nullptr, ids_device.As<int32_t>(),
                            weights_device.As<float>(), 1, experts, top_k, trial % 2 ? 4 : 1, 2,
                            trial % 4 < 2},
                           *stream_)
                    .ok());
    ids_device.Read(ids.data());
    const std::set<int32_t> distinct(ids.begin(), ids.end());
    EXPECT_EQ(distinct.size(), size_t(top_k));
    EXPECT_GE(*distinct.begin(), 0);
    EXPECT_LT(*distinct.rbegin(), experts);
  }
}

TEST_F(CudaKernelsTest, RouterTopkRefusesShapesBeyondItsLimits) {
  const auto refused = [&](int experts, int top_k, int groups) {
    RouterTopkArgs args{nullptr, experts, nullptr, nullptr, nullptr, 1, experts, top_k, groups};
    return RouterTopk(args, *stream_).code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused(1025, 8, 1));
  EXPECT_TRUE(refused(0, 1, 1));
  EXPECT_TRUE(refused(64, 33, 1));
  EXPECT_TRUE(refused(4, 5, 1));
  EXPECT_TRUE(refused(64, 8, 64));
  EXPECT_TRUE(refused(64, 8, 7));
}

}  // namespace
}  // namespace kt::cuda
