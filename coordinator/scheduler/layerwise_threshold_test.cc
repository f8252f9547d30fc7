// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/layerwise_threshold.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "common/sim/rng.h"

namespace kt {
namespace {

TEST(LayerwiseThresholdTest, AGivenNumberHoldsWhateverStepsTake) {
  LayerwiseThreshold t(100);
  EXPECT_FALSE(t.Choose(100)) << "no workers yet";
  t.SetCosts({.possible = true});
  for (int i = 0; i < 100; ++i) {
    EXPECT_FALSE(t.Choose(99));
    EXPECT_TRUE(t.Choose(100));
    t.Learn(true, 100, 1e6);
  }
  EXPECT_EQ(t.Evidence(), "");
  t.SetCosts({.possible = false});
  EXPECT_FALSE(t.Choose(100000));
}

TEST(LayerwiseThresholdTest, ZeroIsNever) {
  LayerwiseThreshold t(0);
  t.SetCosts({.possible = true});
  EXPECT_FALSE(t.Choose(1 << 20));
}

TEST(LayerwiseThresholdTest, AutoBeginsWhereCopyingIsAsFastAsTheCpu) {
  LayerwiseThreshold t(LayerwiseThreshold::kAuto);
  t.SetCosts({.possible = true,
              .copy_bytes = 2'000'000'000,
              .copy_gbytes_per_s = 10,  // 200 ms
              .device_ms_per_row = 0.01,
              .cpu_ms_per_row = 0.5});
  EXPECT_NEAR(t.threshold(), 400, 20);
  EXPECT_NE(t.Evidence().find("2.000 GB to copy at 10.00 GB/s"), std::string::npos) << t.Evidence();
}

TEST(LayerwiseThresholdTest, AutoIsNeverWhereTheDeviceIsNoFaster) {
  LayerwiseThreshold t(LayerwiseThreshold::kAuto);
  t.SetCosts({.possible = true,
              .copy_bytes = 1'000'000,
              .copy_gbytes_per_s = 1,
              .device_ms_per_row = 0.6,
              .cpu_ms_per_row = 0.5});
  EXPECT_EQ(t.threshold(), LayerwiseThreshold::kNever);
  EXPECT_NE(t.Evidence().find("no number of"), std::string::npos);
}

// A machine whose steps take other times than what is measured at its start.
struct Machine {
  double copy_ms;         // of all experts
  double cpu_read_ms;     // reading all experts on the CPU
  double cpu_ms_per_row;  // computing
  double device_ms_per_row;
  double experts, top_k;

  // Few rows choose few of the experts, and reading those bounds the time.
  double Hybrid(int rows) const {
    const double active = 1 - std::pow(1 - top_k / experts, rows);
    return std::max(cpu_read_ms * active, cpu_ms_per_row * rows) + 2;
  }
  double Layerwise(int rows) const { return std::max(copy_ms, device_ms_per_row * rows) + 5; }
  double Ms(bool layerwise, int rows) const { return layerwise ? Layerwise(rows) : Hybrid(rows); }
};

double Uniform(Rng& rng) { return static_cast<double>(rng.Between(0, 1 << 20)) / (1 << 20); }

// Prompts cut into chunks of 4,096 and decode steps between them.
std::vector<int> Steps(uint64_t seed) {
  Rng rng(seed);
  std::vector<int> steps;
  for (int request = 0; request < 400; ++request) {
    int tokens = static_cast<int>(std::exp2(4 + 9.5 * Uniform(rng)));
    for (; tokens > 0; tokens -= 4096) steps.push_back(std::min(tokens, 4096));
    for (int i = 0; i < 4; ++i) steps.push_back(1 + static_cast<int>(rng.Between(0, 15)));
  }
  return steps;
}

struct Sim : ::testing::TestWithParam<std::tuple<double, double>> {};

TEST_P(Sim, AutoIsWithinTenPercentOfTheBestFixedThreshold) {
  const auto [copy_gbps, error] = GetParam();
  constexpr double kGbytes = 6;
  const Machine machine{.copy_ms = kGbytes / copy_gbps * 1000,
                        .cpu_read_ms = kGbytes / 80 * 1000,
                        .cpu_ms_per_row = 1.1,
                        .device_ms_per_row = 0.05,
                        .experts = 128,
                        .top_k = 8};
  const std::vector<int> steps = Steps(7);
  double best = 1e300;
  int best_threshold = 0;
  for (double threshold = 1; threshold < 1e5; threshold *= 1.05) {
    double sum = 0;
    for (int rows : steps) sum += machine.Ms(rows >= threshold, rows);
    if (sum < best) {
      best = sum;
      best_threshold = static_cast<int>(threshold);
    }
  }

  LayerwiseThreshold t(LayerwiseThreshold::kAuto);
  t.SetCosts({.possible = true,
              .copy_bytes = static_cast<uint64_t>(kGbytes * 1e9),
              .copy_gbytes_per_s = copy_gbps * error,
              .device_ms_per_row = 0.05 / error,
              .cpu_ms_per_row = machine.Hybrid(512) / 512 * error});
  Rng noise(3);
  double sum = 0;
  for (int rows : steps) {
    const bool layerwise = t.Choose(rows);
    const double ms = machine.Ms(layerwise, rows);
    sum += ms;
    t.Learn(layerwise, rows, ms * (0.95 + 0.1 * Uniform(noise)));
  }
  EXPECT_LE(sum, 1.1 * best) << "best threshold " << best_threshold << "; " << t.Evidence();
}

INSTANTIATE_TEST_SUITE_P(CopyRates, Sim,
                         ::testing::Combine(::testing::Values(3.0, 12.0, 50.0),  // GB/s
                                            ::testing::Values(0.5, 1.0, 2.0)));  // measured / true

}  // namespace
}  // namespace kt
