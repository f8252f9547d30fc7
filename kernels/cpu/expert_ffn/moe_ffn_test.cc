// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/expert_ffn/moe_ffn.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "common/base/aligned_buffer.h"
#include "kernels/cpu/gemm/testing/kernel_testing.h"
#include "kernels/cpu/gemm/testing/random_matrix.h"

namespace kt {
namespace {

// A random matrix of a random format, its packed form and, now and then, a bias.
struct Matrix {
  Matrix(std::mt19937& rng, int n, int k, bool any_format, std::optional<PackedCode> int8_x)
      : random(rng, kMatrixSpecs[any_format ? rng() % std::size(kMatrixSpecs) : 0], n, k),
        packed(random.view(),
               int8_x ? Int8XFormat(*int8_x, k) : PackedFormatOf(random.view(), rng() % 2 == 0)),
        w(n * k) {
    for (int r = 0; r < n; ++r) {
      if (int8_x) UnpackRow(packed.matrix, r, &w[r * k]);
      for (int c = 0; c < k && !int8_x; ++c)
        w[r * k + c] = PackedValue(random.view(), packed.matrix.format, r, c);
    }
    error = PackedError(packed.matrix.format);
    if (!any_format || rng() % 2 == 0) return;
    std::normal_distribution<float> normal;
    for (int r = 0; r < n; ++r) bias.push_back(normal(rng));
    packed.matrix.bias = bias.data();
  }

  RandomMatrix random;
  PackedCopy packed;
  std::vector<float> w;  // row-major
  double error;          // of each weight, relative
  std::vector<float> bias;
};

struct Expert {
  std::unique_ptr<Matrix> gate, up, down;
  bool held;
};

// A layer with random weights and tokens; some ids are out of range, repeated, or name experts that
// are not held.
struct Layer {
  Layer(std::mt19937& rng, MoeShape shape, int tokens, bool any_format = false,
        std::optional<PackedCode> int8_x = std::nullopt)
      : shape(shape), tokens(tokens) {
    const int h = shape.hidden, i = shape.intermediate;
    for (int e = 0; e < shape.num_experts; ++e) {
      const auto matrix = [&](int n, int k) {
        return std::make_unique<Matrix>(rng, n, k, any_format, int8_x);
      };
      experts.push_back({matrix(i, h), matrix(i, h), matrix(h, i), e % 5 != 4});
    }
    for (const Expert& e : experts) {
      table.push_back(
          e.held ? ExpertWeights{e.gate->packed.matrix, e.up->packed.matrix, e.down->packed.matrix}
                 : ExpertWeights{});
    }
    x = RandomBf16(rng, tokens * h, 1 / std::sqrt(float(h)));
    for (bf16 value : x) x_f32.push_back(ToFloat(value) * 1.001f);
    std::uniform_int_distribution<int> id(-2, shape.num_experts + 1);
    std::uniform_real_distribution<float> weight(-0.2f, 1.0f);
    for (int s = 0; s < tokens * shape.top_k; ++s) {
      ids.push_back(s % shape.top_k == 1 && s % 7 == 0 ? ids.back() : id(rng));
      weights.push_back(weight(rng));
    }
  }

  MoeArgs Args(bool bf16_x, int first_token, int count, float* y) const {
    const void* rows = bf16_x ? static_cast<const void*>(x.data() + first_token * shape.hidden)
                              : x_f32.data() + first_token * shape.hidden;
    return {rows,
            bf16_x,
            count,
            ids.data() + first_token * shape.top_k,
            weights.data() + first_token * shape.top_k,
            table.data(),
            y};
  }

  std::vector<float> Run(Isa isa, bool bf16_x, Parallel& parallel, int tokens_max_per_pass,
                         int first_token = 0, int count = -1) const {
    if (count < 0) count = tokens;
    MoeFfn ffn(shape, isa, tokens_max_per_pass);
    AlignedBuffer scratch(ffn.ScratchBytes(parallel.threads()));
    std::memset(scratch.data(), 0xff,
                scratch.size());  // NaN wherever something is read before it is written
    std::vector<float> y(count * shape.hidden, std::nanf(""));
    ffn.Run(Args(bf16_x, first_token, count, y.data()), scratch.data(), parallel);
    return y;
  }

  MoeShape shape;
  int tokens;
  std::vector<Expert> experts;
  std::vector<ExpertWeights> table;
  std::vector<bf16> x;
  std::vector<float> x_f32;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

struct Bounded {
  double value = 0, error = 0;
};

// sum of x w + bias in exact arithmetic, with the bound on what fp32 summation in any order,
// scaling and errors of x and w add.
Bounded Dot(const std::vector<Bounded>& x, const Matrix& matrix, int row) {
  Bounded sum;
  double magnitude = matrix.bias.empty() ? 0 : std::abs(matrix.bias[row]);
  if (!matrix.bias.empty()) sum.value = matrix.bias[row];
  for (size_t i = 0; i < x.size(); ++i) {
    const double weight = matrix.w[row * x.size() + i];
    sum.value += x[i].value * weight;
    magnitude += std::abs(x[i].value * weight);
    sum.error += x[i].error * std::abs(weight);
  }
  constexpr double kEps = std::numeric_limits<float>::epsilon() / 2;
  sum.error +=
      (2 * x.size() + 8) * (kEps * (magnitude + sum.error) + std::numeric_limits<float>::min()) +
      matrix.error * (magnitude + sum.error);
  return sum;
}

// The layer by its definition, token by token, in double, each value with a bound on the error of a
// correct implementation.
std::vector<Bounded> Reference(const Layer& layer, bool bf16_x) {
  const int h = layer.shape.hidden, n = layer.shape.intermediate, top_k = layer.shape.top_k;
  constexpr double kEps = std::numeric_limits<float>::epsilon();
  const double rounding = bf16_x ? 1.0 / 256 : 0;  // of the activation
  std::vector<Bounded> y(layer.tokens * h);
  for (int t = 0; t < layer.tokens; ++t) {
    std::vector<Bounded> x(h), act(n);
    for (int c = 0; c < h; ++c)
      x[c].value = bf16_x ? ToFloat(layer.x[t * h + c]) : layer.x_f32[t * h + c];
    for (int s = 0; s < top_k; ++s) {
      const int id = layer.ids[t * top_k + s];
      if (id < 0 || id >= layer.shape.num_experts || !layer.experts[id].held) continue;
      const Expert& expert = layer.experts[id];
      for (int i = 0; i < n; ++i) {
        const GluParams& p = layer.shape.glu;
        Bounded g = Dot(x, *expert.gate, i), u = Dot(x, *expert.up, i);
        g.value = std::min(g.value, double{p.limit});
        u.value = std::clamp(u.value, -double{p.limit}, double{p.limit}) + p.up_offset;
        u.error += kEps * (std::abs(u.value) + std::abs(p.up_offset));
        const double silu = g.value / (1 + std::exp(-p.alpha * g.value)),
                     silu_error = 1.1 * g.error;  // |(g sigmoid(alpha g))'| < 1.1
        act[i].value = silu * u.value;
        act[i].error = silu_error * (std::abs(u.value) + u.error) + std::abs(silu) * u.error;
        act[i].error += ((8 + std::abs(p.alpha * g.value)) * kEps + rounding) *
                        (std::abs(act[i].value) + act[i].error);
      }
      const double weight = layer.weights[t * top_k + s];
      for (int c = 0; c < h; ++c) {
        const Bounded d = Dot(act, *expert.down, c);
        y[t * h + c].value += weight * d.value;
        y[t * h + c].error += std::abs(weight) * (d.error + top_k * kEps * std::abs(d.value));
      }
    }
  }
  return y;
}

class MoeFfnTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!CanRun(GetParam())) GTEST_SKIP() << "this CPU cannot run " << IsaName(GetParam());
  }
  std::mt19937 rng_{20240609};
  Serial serial_;
};

TEST_P(MoeFfnTest, OddShapesMatchTheDefinition) {
  std::uniform_int_distribution<int> hidden(1, 70), intermediate(1, 50), experts(1, 11),
      top_k(1, 5), tokens(1, 14), pass(1, 20);
  for (int i = 0; i < 120; ++i) {
    Layer layer(rng_, {hidden(rng_), intermediate(rng_), experts(rng_), top_k(rng_)}, tokens(rng_));
    for (bool bf16_x : {true, false}) {
      const std::vector<float> y = layer.Run(GetParam(), bf16_x, serial_, pass(rng_));
      const std::vector<Bounded> expected = Reference(layer, bf16_x);
      for (size_t j = 0; j < y.size(); ++j) {
        ASSERT_NEAR(y[j], expected[j].value, expected[j].error)
            << "shape " << i << " element " << j << (bf16_x ? " bf16" : " f32");
      }
    }
  }
}

TEST_P(MoeFfnTest, MatricesOfAnyFormatWithBiasesMatchTheDefinition) {
  std::uniform_int_distribution<int> hidden(1, 150), intermediate(1, 90), tokens(1, 14);
  for (int i = 0; i < 40; ++i) {
    Layer layer(rng_, {hidden(rng_), intermediate(rng_), 4, 3}, tokens(rng_), true);
    if (i % 2 != 0) layer.shape.glu = {1.702f, 7, 1};
    for (bool bf16_x : {true, false}) {
      const std::vector<float> y = layer.Run(GetParam(), bf16_x, serial_, 20);
      const std::vector<Bounded> expected = Reference(layer, bf16_x);
      for (size_t j = 0; j < y.size(); ++j) {
        ASSERT_NEAR(y[j], expected[j].value, expected[j].error)
            << "shape " << i << " element " << j << (bf16_x ? " bf16" : " f32");
      }
    }
  }
}

TEST_P(MoeFfnTest, RelativeErrorOfBf16IsBelowHalfAPercent) {
  Layer layer(rng_, {256, 192, 8, 4}, 6);
  const std::vector<float> y = layer.Run(GetParam(), true, serial_, 8);
  const std::vector<Bounded> expected = Reference(layer, true);
  double error = 0, norm = 0;
  for (size_t j = 0; j < y.size(); ++j) {
    error += std::pow(y[j] - expected[j].value, 2);
    norm += std::pow(expected[j].value, 2);
  }
  EXPECT_LT(std::sqrt(error / norm), 0.005);
}

// A row rounded to int8 and back, by the rule.
std::vector<double> Rounded(const std::vector<double>& row) {
  float amax = 0;
  for (double x : row) amax = std::max(amax, static_cast<float>(std::abs(x)));
  const float scale = static_cast<float>(double{amax} / 127);
  std::vector<double> out;
  for (double x : row)
    out.push_back(scale == 0 ? 0 : scale * std::nearbyint(static_cast<float>(x) * (1 / scale)));
  return out;
}

// The layer in double, with weights as `weight(matrix, row, column)` gives them and x and the
// activation as `round` leaves them.
template <typename Weight, typename Round>
std::vector<double> InDouble(const Layer& layer, Weight weight, Round round) {
  const int h = layer.shape.hidden, n = layer.shape.intermediate, top_k = layer.shape.top_k;
  const auto product = [&](const Matrix& matrix, const std::vector<double>& x, int row) {
    double sum = matrix.bias.empty() ? 0 : matrix.bias[row];
    for (size_t c = 0; c < x.size(); ++c) sum += x[c] * weight(matrix, row, static_cast<int>(c));
    return sum;
  };
  std::vector<double> y(layer.tokens * h);
  for (int t = 0; t < layer.tokens; ++t) {
    const std::vector<double> x = round({&layer.x_f32[t * h], &layer.x_f32[t * h] + h});
    for (int s = t * top_k; s < (t + 1) * top_k; ++s) {
      const int id = layer.ids[s];
      if (id < 0 || id >= layer.shape.num_experts || !layer.experts[id].held) continue;
      const Expert& expert = layer.experts[id];
      std::vector<double> activation(n);
      for (int i = 0; i < n; ++i) {
        const double g = product(*expert.gate, x, i);
        activation[i] = g / (1 + std::exp(-g)) * product(*expert.up, x, i);
      }
      activation = round(activation);
      for (int c = 0; c < h; ++c)
        y[t * h + c] += layer.weights[s] * product(*expert.down, activation, c);
    }
  }
  return y;
}

template <typename T>
double RelativeRms(const std::vector<T>& got, const std::vector<double>& want) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += std::pow(double{got[i]} - want[i], 2);
    norm += want[i] * want[i];
  }
  return std::sqrt(error / norm);
}

TEST_P(MoeFfnTest, RoundingToInt8ErrsAsItsDefinitionDoes) {
  const auto original = [](const Matrix& m, int r, int c) { return m.random.view().At(r, c); };
  const auto packed = [](const Matrix& m, int r, int c) { return m.w[r * m.packed.matrix.k + c]; };
  for (PackedCode code : {PackedCode::kInt8, PackedCode::kInt4}) {
    for (bool any_format : {false, true}) {
      Layer layer(rng_, {200, 150, 8, 4}, 9, any_format, code);
      const auto as_it_is = [](const std::vector<double>& row) { return row; };
      const std::vector<double> exact = InDouble(layer, original, as_it_is);
      const std::vector<double> definition = InDouble(layer, packed, Rounded);
      const double own_error = RelativeRms(definition, exact);
      EXPECT_LT(own_error, code == PackedCode::kInt8 ? 0.03 : 0.4);
      const std::vector<float> y = layer.Run(GetParam(), false, serial_, 8);
      EXPECT_LE(RelativeRms(y, exact), 1.05 * own_error);
      EXPECT_LE(RelativeRms(y, definition), 0.002) << "ties may round the other way";
    }
  }
}

TEST_P(MoeFfnTest, RoundedToInt8TooATokenAloneHasTheBitsItHasInABatch) {
  for (PackedCode code : {PackedCode::kInt8, PackedCode::kInt4}) {
    for (MoeShape shape : {MoeShape{130, 300, 3, 2}, MoeShape{7, 5, 3, 2}, MoeShape{5, 90, 3, 2}}) {
      Layer layer(rng_, shape, 100, true, code);
      Threads parallel(3);
      for (bool bf16_x : {true, false}) {
        const std::vector<float> batch = layer.Run(GetParam(), bf16_x, serial_, 100);
        EXPECT_EQ(layer.Run(GetParam(), bf16_x, serial_, 17), batch) << "in passes";
        EXPECT_EQ(layer.Run(GetParam(), bf16_x, parallel, 64), batch) << "on threads";
        for (int t = 0; t < 100; t += 11) {
          const std::vector<float> alone = layer.Run(GetParam(), bf16_x, serial_, 1, t, 1);
          ASSERT_EQ(
              std::memcmp(alone.data(), &batch[t * shape.hidden], shape.hidden * sizeof(float)), 0)
              << t;
        }
      }
    }
  }
}

TEST_P(MoeFfnTest, TokenAloneHasTheBitsItHasInABatch) {
  for (auto [shape, tokens] :
       {std::pair{MoeShape{130, 300, 3, 2}, 400}, std::pair{MoeShape{65, 40, 12, 6}, 50}}) {
    Layer layer(rng_, shape, tokens, true);
    for (bool bf16_x : {true, false}) {
      const std::vector<float> batch = layer.Run(GetParam(), bf16_x, serial_, tokens);
      for (int t = 0; t < tokens; t += 11) {
        const std::vector<float> alone = layer.Run(GetParam(), bf16_x, serial_, 1, t, 1);
        ASSERT_EQ(std::memcmp(alone.data(), &batch[t * shape.hidden], shape.hidden * sizeof(float)),
                  0)
            << t;
      }
      EXPECT_EQ(layer.Run(GetParam(), bf16_x, serial_, 17), batch) << "in passes";
    }
  }
}

TEST_P(MoeFfnTest, ThreadCountDoesNotChangeBits) {
  Layer layer(rng_, {600, 330, 9, 3}, 70, true);
  for (bool bf16_x : {true, false}) {
    const std::vector<float> one = layer.Run(GetParam(), bf16_x, serial_, 64);
    for (int threads : {2, 3, 8}) {
      Threads parallel(threads);
      EXPECT_EQ(layer.Run(GetParam(), bf16_x, parallel, 64), one) << threads;
    }
  }
}

TEST_P(MoeFfnTest, TokensWithoutAHeldExpertGetZeros) {
  Layer layer(rng_, {40, 24, 5, 2}, 3);
  layer.ids = {-1, 5, 4, INT32_MAX, INT32_MIN, 4};  // expert 4 is not held
  for (float value : layer.Run(GetParam(), true, serial_, 2)) EXPECT_EQ(value, 0);
}

TEST_P(MoeFfnTest, RepeatedExpertCountsOncePerSlot) {
  Layer layer(rng_, {40, 24, 5, 2}, 1);
  layer.ids = {3, 3};
  layer.weights = {0.25f, 0.5f};
  const std::vector<float> twice = layer.Run(GetParam(), false, serial_, 1);
  layer.ids = {3, -1};
  layer.weights = {0.75f, 0};
  const std::vector<float> once = layer.Run(GetParam(), false, serial_, 1);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(twice[i], once[i], 1e-6 * std::abs(once[i]));
}

TEST_P(MoeFfnTest, NoTokensWriteNothing) {
  Layer layer(rng_, {40, 24, 5, 2}, 1);
  EXPECT_TRUE(layer.Run(GetParam(), true, serial_, 4, 0, 0).empty());
}

INSTANTIATE_TEST_SUITE_P(Rows, MoeFfnTest, testing::ValuesIn(kAllIsas),
                         [](const auto& info) { return IsaName(info.param); });

}  // namespace
}  // namespace kt
