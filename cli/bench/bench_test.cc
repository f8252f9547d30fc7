// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "cli/bench/bench_format.h"
#include "cli/bench/bench_layers.h"
#include "cli/bench/bench_shape.h"
#include "cli/bench/kernel_bench.h"
#include "cli/bench/machine_limits.h"
#include "cli/bench/model_bench.h"
#include "cli/bench/tensor_file.h"
#include "common/base/bf16.h"
#include "common/base/status.h"
#include "common/weights/test_checkpoint.h"

namespace kt::cli {
namespace {

using ::testing::HasSubstr;

TEST(BenchFormatTest, NamesAreDistinctAndFound) {
  std::set<std::string> names;
  for (const BenchFormat& format : BenchFormats()) {
    EXPECT_TRUE(names.insert(format.name).second) << format.name;
    EXPECT_EQ(FindBenchFormat(format.name).value(), &format);
  }
  for (const char* name : {"bf16", "fp8-block", "fp8-channel", "int8", "int4-g32", "int4-g128",
                           "mxfp4", "amxint8", "amxint4"})
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
                      .samples = {{0.10, 2, 1e9}, {0.20, 6, 3e9}, {0.30, 6, 3e9}},
                      .machine = {.bytes_per_s = 20e9, .operations_per_s = 100e9}};
  const Json json = row.ToJson();  // limits of 50, 150 and 150 ms
  EXPECT_DOUBLE_EQ(json["ms"], 200);
  EXPECT_DOUBLE_EQ(json["limit"], 150);
  EXPECT_EQ(json["active_experts"], 6);
  EXPECT_DOUBLE_EQ(json["share_of_limit"], 0.75);
  EXPECT_DOUBLE_EQ(json["gbytes_per_s"], 15);
  EXPECT_DOUBLE_EQ(json["gflops"], 5);
  EXPECT_EQ(json["limited_by"], "memory");
  EXPECT_DOUBLE_EQ(json["ms_median"], 200);
  EXPECT_DOUBLE_EQ(json["share_of_limit_median"], 0.5);
}

TEST(ModelBenchTest, DecodeRateIsThatOfTheTimeInWhichAllDecode) {
  const StreamTimes early{.start = 0, .events = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}}};
  const StreamTimes late{.start = 0, .events = {{3, 1}, {4, 2}, {6, 1}}};
  EXPECT_DOUBLE_EQ(DecodeRate({{early}}).value(), 1);
  EXPECT_DOUBLE_EQ(DecodeRate({{early, late}}).value(), 2);  // 2 + 2 tokens from 3 to 5
  const StreamTimes after{.start = 0, .events = {{7, 1}, {8, 1}}};
  EXPECT_THAT(Message(DecodeRate({{early, after}}).status()),
              HasSubstr("2 streams never decoded at the same time"));
}

TEST(ModelBenchTest, RowsGiveTheBestAndTheMedian) {
  const ModelRow prefill{.what = "prefill",
                         .prompt_tokens = 100,
                         .seconds = {0.5, 0.2, 0.4},
                         .tokens_per_s = {200, 500, 250}};
  const Json json = prefill.ToJson();
  EXPECT_EQ(json["ttft_s"], 0.2);
  EXPECT_EQ(json["ttft_s_median"], 0.4);
  EXPECT_EQ(json["tokens_per_s"], 500);
  EXPECT_EQ(json["tokens_per_s_median"], 250);
  EXPECT_FALSE((ModelRow{.what = "decode", .tokens_per_s = {1}}).ToJson().contains("ttft_s"));
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

class BenchWeightsTest : public ::testing::Test {
 protected:
  static constexpr int kLayers = 2, kHidden = 64, kIntermediate = 32, kExperts = 4;
  static constexpr MoeShape kShape{kHidden, kIntermediate, kExperts, 2};

  static std::string Name(int layer, int expert, const char* matrix) {
    return fmt::format("model.layers.{}.mlp.experts.{}.{}_proj", layer, expert, matrix);
  }

  // A directory with random experts of a format; what it holds is in matrices_.
  void Write(const BenchFormat& format) {
    std::mt19937_64 rng(3);
    TensorFile file;
    matrices_.clear();
    for (int l = 0; l < kLayers; ++l) {
      for (int e = 0; e < kExperts; ++e) {
        for (const char* name : {"gate", "up", "down"}) {
          const bool down = name == std::string("down");
          const MatrixView& v =
              matrices_
                  .try_emplace(Name(l, e, name), format, down ? kHidden : kIntermediate,
                               down ? kIntermediate : kHidden, rng)
                  .first->second.view();
          file.Set(Name(l, e, name) + ".weight", DType::kU8, {v.n, v.code_row_stride}, v.codes);
          if (v.scale != ScaleType::kNone) {
            file.Set(Name(l, e, name) + ".weight_scale", DType::kU8,
                     {(v.n + v.block_rows - 1) / v.block_rows, v.scale_row_stride}, v.scales);
          }
        }
      }
    }
    ASSERT_TRUE(file.Write(dir_.path() + "/model.safetensors").ok());
  }

  KernelBenchOptions Options(const BenchFormat& format) const {
    return {.formats = {format.name},
            .shapes = {"64x32x4x2"},
            .tokens = {1, 5},
            .threads = {1},
            .seconds = 0,
            .weights = dir_.path(),
            .dump = dir_.path() + "/dump.safetensors"};
  }

  // One expert's result for a row, in double precision but for the activation's rounding.
  std::vector<double> Expert(int e, const std::vector<float>& x) const {
    const auto product = [&](const char* name, auto in) {
      const MatrixView& w = matrices_.at(Name(0, e, name)).view();
      std::vector<double> out(w.n);
      for (int r = 0; r < w.n; ++r) {
        for (int c = 0; c < w.k; ++c) out[r] += double{w.At(r, c)} * in[c];
      }
      return out;
    };
    const std::vector<double> gate = product("gate", x), up = product("up", x);
    std::vector<double> activation(kIntermediate);
    for (int i = 0; i < kIntermediate; ++i)
      activation[i] = RoundToBf16(static_cast<float>(gate[i] / (1 + std::exp(-gate[i])) * up[i]));
    return product("down", activation);
  }

  TestDir dir_;
  std::map<std::string, RandomMatrix> matrices_;
};

TEST_F(BenchWeightsTest, RunsTheGivenExpertsAndDumpsACall) {
  for (const BenchFormat& format : BenchFormats()) {
    SCOPED_TRACE(format.name);
    Write(format);
    int rows = 0;
    const absl::Status status = RunKernelBench(Options(format), [&](const KernelRow& row) {
      EXPECT_EQ(row.layers, kLayers);
      EXPECT_EQ(row.samples.size(), 2u);
      ++rows;
    });
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(rows, 2);

    TestDir dumped;
    std::filesystem::rename(dir_.path() + "/dump.safetensors",
                            dumped.path() + "/model.safetensors");
    const auto file = Checkpoint::Open(dumped.path()).value();
    const auto values = [&]<typename T>(const std::string& name, T) {
      const std::span<const uint8_t> data = file->Find(name)->data;
      std::vector<T> out(data.size() / sizeof(T));
      std::memcpy(out.data(), data.data(), data.size());
      return out;
    };
    for (int tokens : {1, 5}) {
      const std::string prefix = std::to_string(tokens);
      const auto x = values(prefix + ".x", bf16{});
      const auto ids = values(prefix + ".ids", int32_t{});
      const auto weights = values(prefix + ".weights", float{});
      const auto y = values(prefix + ".y", float{});
      ASSERT_EQ(y.size(), size_t(tokens) * kHidden);
      double error = 0, size = 0;
      for (int t = 0; t < tokens; ++t) {
        EXPECT_NE(ids[2 * t], ids[2 * t + 1]);
        std::vector<double> expected(kHidden);
        std::vector<float> row(kHidden);
        for (int i = 0; i < kHidden; ++i) row[i] = ToFloat(x[t * kHidden + i]);
        for (int slot = 2 * t; slot < 2 * t + 2; ++slot) {
          const std::vector<double> part = Expert(ids[slot], row);
          for (int i = 0; i < kHidden; ++i) expected[i] += weights[slot] * part[i];
        }
        for (int i = 0; i < kHidden; ++i) {
          error += std::pow(y[t * kHidden + i] - expected[i], 2);
          size += std::pow(expected[i], 2);
        }
      }
      EXPECT_GT(size, 0);
      // Rounding the weights again takes its part: one scale per row of 127 or 7 levels.
      const double bound = !format.int8_x                        ? 0.005
                           : *format.int8_x == PackedCode::kInt8 ? 0.03
                                                                 : 0.3;
      EXPECT_LT(std::sqrt(error / size), bound);
    }
  }
}

TEST_F(BenchWeightsTest, RefusesWhatDoesNotFit) {
  const BenchFormat& bf16 = *FindBenchFormat("bf16").value();
  Write(bf16);
  const auto message = [](const KernelBenchOptions& options) {
    return Message(RunKernelBench(options, [](const KernelRow&) {}));
  };
  KernelBenchOptions options = Options(bf16);
  options.formats = {"int8"};
  EXPECT_THAT(message(options),
              HasSubstr("experts.0.gate_proj.weight has 4096 bytes, but int8 [32, 64] takes 2048"));
  options.formats = {"bf16", "int8"};
  EXPECT_THAT(message(options), HasSubstr("--weights: name its one --format"));
  options = Options(bf16);
  options.shapes = {"64x32x5x2"};
  EXPECT_THAT(message(options),
              HasSubstr("there is no tensor model.layers.0.mlp.experts.4.gate_proj.weight"));
  options = Options(bf16);
  options.dump = dir_.path() + "/no/such/folder";
  EXPECT_THAT(message(options), HasSubstr("/no/such/folder: cannot be written"));
}

}  // namespace
}  // namespace kt::cli
