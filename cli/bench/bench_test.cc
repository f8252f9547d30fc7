// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "cli/bench/bench_format.h"
#include "cli/bench/bench_layers.h"
#include "cli/bench/bench_shape.h"
#include "cli/bench/kernel_bench.h"
#include "cli/bench/machine_limits.h"
#include "common/base/status.h"

namespace kt::cli {
namespace {

using ::testing::HasSubstr;

TEST(BenchFormatTest, NamesAreDistinctAndFound) {
  std::set<std::string> names;
  for (const BenchFormat& format : BenchFormats()) {
    EXPECT_TRUE(names.insert(format.name).second) << format.name;
    EXPECT_EQ(FindBenchFormat(format.name).value(), &format);
  }
  for (const char* name :
       {"bf16", "fp8-block", "fp8-channel", "int8", "int4-g32", "int4-g128", "mxfp4"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_THAT(Message(FindBenchFormat("BF16").status()), HasSubstr("--format BF16: use one of"));
}

TEST(BenchFormatTest, RandomValuesAreNumbersOfOneSize) {
  constexpr int kN = 144, kK = 272;  // no whole number of blocks
  for (const BenchFormat& format : BenchFormats()) {
    std::mt19937_64 rng(7);
    const RandomMatrix matrix(format, kN, kK, rng);
    double squares = 0;
    for (int r = 0; r < kN; ++r) {
      for (int c = 0; c < kK; ++c) squares += std::pow(matrix.view().At(r, c), 2);
    }
    const double size = std::sqrt(squares / (kN * kK));
    EXPECT_GT(size, 0.004) << format.name;
    EXPECT_LT(size, 0.06) << format.name;
  }
}

TEST(BenchShapeTest, NamesAndSizes) {
  const auto shape = [](const char* name) {
    const MoeShape s = ParseBenchShape(name).value();
    return std::vector<int>{s.hidden, s.intermediate, s.num_experts, s.top_k};
  };
  EXPECT_EQ(shape("qwen3-30b"), (std::vector{2048, 768, 128, 8}));
  EXPECT_EQ(shape("deepseek-v3"), (std::vector{7168, 2048, 32, 8}));
  EXPECT_EQ(shape("glm-4.7"), (std::vector{5120, 1536, 160, 8}));
  EXPECT_EQ(shape("minimax-m2"), (std::vector{3072, 1536, 256, 8}));
  EXPECT_EQ(shape("kimi-k2"), (std::vector{7168, 2048, 384, 8}));
  EXPECT_EQ(shape("64x32x4x2"), (std::vector{64, 32, 4, 2}));
  for (const char* bad : {"", "qwen3", "64x32x4", "64x32x4x2x1", "64x32x4x5", "0x32x4x2",
                          "63x32x4x2", "-64x32x4x2", "64x32x4x2 ", "9999999x32x4x2"})
    EXPECT_THAT(Message(ParseBenchShape(bad).status()), HasSubstr("use qwen3-30b|")) << bad;
}

TEST(BenchLimitTest, TheSlowerOfReadingAndComputing) {
  const MachineRates rates{.bytes_per_s = 20e9, .operations_per_s = 100e9};
  EXPECT_DOUBLE_EQ(LimitOf(10e9, 20e9, rates).seconds, 0.5);
  EXPECT_TRUE(LimitOf(10e9, 20e9, rates).memory);
  EXPECT_DOUBLE_EQ(LimitOf(10e9, 90e9, rates).seconds, 0.9);
  EXPECT_FALSE(LimitOf(10e9, 90e9, rates).memory);
}

TEST(BenchLimitTest, RowOfTheSampleNearestToItsLimit) {
  const KernelRow row{.format = "bf16",
                      .operations = 1e9,
                      .samples = {{0.10, 1e9}, {0.20, 3e9}, {0.30, 3e9}},
                      .machine = {.bytes_per_s = 20e9, .operations_per_s = 100e9}};
  const Json json = row.ToJson();  // limits of 50, 150 and 150 ms
  EXPECT_DOUBLE_EQ(json["ms"], 200);
  EXPECT_DOUBLE_EQ(json["limit"], 150);
  EXPECT_DOUBLE_EQ(json["share_of_limit"], 0.75);
  EXPECT_DOUBLE_EQ(json["gbytes_per_s"], 15);
  EXPECT_DOUBLE_EQ(json["gflops"], 5);
  EXPECT_EQ(json["limited_by"], "memory");
  EXPECT_DOUBLE_EQ(json["ms_median"], 200);
  EXPECT_DOUBLE_EQ(json["share_of_limit_median"], 0.5);
}

TEST(BenchLayersTest, LayersOutgrowTheCachesAndFitTheMemory) {
  const MoeShape shape{.hidden = 64, .intermediate = 32, .num_experts = 16, .top_k = 2};
  const auto plan = [&](size_t cache, size_t memory) {
    const LayerPlan p = PlanLayers(shape, 1000, cache, memory).value();
    return std::pair{p.layers, p.experts};
  };
  EXPECT_EQ(plan(0, 1'000'000), std::pair(2, 16));
  EXPECT_EQ(plan(10'000, 1'000'000), std::pair(22, 16));  // 4 x 10,000 bytes are 20 active pairs
  EXPECT_EQ(plan(10'000, 100'000), std::pair(6, 16));     // as many as fit
  EXPECT_EQ(plan(10'000, 20'000), std::pair(2, 10));      // experts are left out
  EXPECT_THAT(Message(PlanLayers(shape, 1000, 10'000, 3'999).status()),
              HasSubstr("do not fit the"));
}

TEST(BenchLayersTest, EveryExpertHasItsOwnCopy) {
  const auto topology = topology::Topology::Load().value();
  const MoeShape shape{.hidden = 64, .intermediate = 32, .num_experts = 3, .top_k = 2};
  Serial serial;
  for (const BenchFormat& format : BenchFormats()) {
    const BenchLayers layers = BenchLayers::Random(format, shape, 2, topology, -1, serial).value();
    ASSERT_EQ(layers.layers(), 2);
    EXPECT_EQ(layers.expert_bytes(), BenchLayers::ExpertBytes(format, shape));
    std::set<const uint8_t*> places;
    std::vector<float> first(64), row(64);
    UnpackRow(layers.layer(0)[0].gate, 31, first.data());
    for (int e = 0; e < 6; ++e) {
      const ExpertWeights& expert = layers.layer(e / 3)[e % 3];
      for (const PackedMatrix* m : {&expert.gate, &expert.up, &expert.down})
        EXPECT_TRUE(places.insert(m->data).second);
      UnpackRow(expert.gate, 31, row.data());
      EXPECT_EQ(row, first) << format.name;
    }
  }
}

}  // namespace
}  // namespace kt::cli
