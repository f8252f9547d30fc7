// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/delta_net/delta_net.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>

#include "fmt/format.h"
#include "kernels/cpu/simd/testing.h"

namespace kt {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// A state or scratch: aligned, NaN where nothing has been written.
class Buffer {
 public:
  explicit Buffer(size_t bytes)
      : bytes_(bytes), data_(static_cast<float*>(operator new (bytes, std::align_val_t{64}))) {
    std::fill_n(data_.get(), bytes / sizeof(float), kNan);
  }
  void* data() { return data_.get(); }
  bool operator==(const Buffer& other) const {
    return std::memcmp(data_.get(), other.data_.get(), bytes_) == 0;
  }

 private:
  struct Delete {
    void operator()(float* p) const { operator delete (p, std::align_val_t{64}); }
  };
  size_t bytes_;
  std::unique_ptr<float, Delete> data_;
};

// One layer with random weights and the projections of one sequence in both layouts.
class Layer {
 public:
  Layer(TestRandom& random, const DeltaNetShape& s, int tokens, bool is_bf16)
      : shape(s),
        tokens(tokens),
        is_bf16(is_bf16),
        group(s.value_heads / s.key_heads),
        channels(2 * s.key_heads * s.key_dim + s.value_heads * s.value_dim),
        conv(random.Normals(size_t(channels) * s.conv_kernel, 0.5f)),
        a_log(random.Normals(s.value_heads)),
        dt_bias(random.Normals(s.value_heads)),
        norm(random.Normals(s.value_dim)) {
    x = random.Normals(size_t(tokens) * channels);
    z = random.Normals(size_t(tokens) * s.value_heads * s.value_dim);
    b = random.Normals(size_t(tokens) * s.value_heads, 2);
    a = random.Normals(size_t(tokens) * s.value_heads, 3);
    for (float& v : a) {
      if (random.Int(0, 30) == 0) v = random.Normal(30);  // the ends of softplus
    }
    LayOut();
  }

  // Copies x, z, b, a into the two layouts, with gaps of NaN between tokens.
  void LayOut() {
    const DeltaNetShape& s = shape;
    const int values = group * s.value_dim, head = 2 * s.key_dim + 2 * values, gap = 3;
    qkvz_stride = s.key_heads * head + gap, ba_stride = 2 * s.value_heads + gap;
    qkv_stride = channels + gap, z_stride = s.value_heads * s.value_dim + gap,
    gate_stride = s.value_heads + gap;
    auto nans = [&](int64_t stride) { return std::vector<float>(tokens * stride, kNan); };
    std::vector<float> qkvz = nans(qkvz_stride), ba = nans(ba_stride), qkv = nans(qkv_stride),
                       zs = nans(z_stride), bs = nans(gate_stride), as = nans(gate_stride);
    for (int t = 0; t < tokens; ++t) {
      std::copy_n(x.begin() + int64_t{t} * channels, channels, qkv.begin() + t * qkv_stride);
      std::copy_n(z.begin() + int64_t{t} * s.value_heads * s.value_dim, s.value_heads * s.value_dim,
                  zs.begin() + t * z_stride);
      std::copy_n(b.begin() + t * s.value_heads, s.value_heads, bs.begin() + t * gate_stride);
      std::copy_n(a.begin() + t * s.value_heads, s.value_heads, as.begin() + t * gate_stride);
      for (int h = 0; h < s.key_heads; ++h) {
        auto row = qkvz.begin() + t * qkvz_stride + h * head;
        auto from = x.begin() + int64_t{t} * channels;
        const int keys = s.key_heads * s.key_dim;
        row = std::copy_n(from + h * s.key_dim, s.key_dim, row);
        row = std::copy_n(from + keys + h * s.key_dim, s.key_dim, row);
        row = std::copy_n(from + 2 * keys + h * values, values, row);
        std::copy_n(z.begin() + (int64_t{t} * s.key_heads + h) * values, values, row);
        auto gates = ba.begin() + t * ba_stride + h * 2 * group;
        gates = std::copy_n(b.begin() + t * s.value_heads + h * group, group, gates);
        std::copy_n(a.begin() + t * s.value_heads + h * group, group, gates);
      }
    }
    qkvz_ = Activations(qkvz, is_bf16), ba_ = Activations(ba, is_bf16);
    qkv_ = Activations(qkv, is_bf16), z_ = Activations(zs, is_bf16);
    b_ = Activations(bs, is_bf16), a_ = Activations(as, is_bf16);
  }

  // Tokens [begin, end) of the sequence.
  DeltaNetArgs Args(bool grouped, int begin, int end, const void* source, void* target,
                    Activations& out) const {
    const int64_t width = shape.value_heads * shape.value_dim;
    return {.shape = shape,
            .projections =
                grouped ? GroupedProjections(shape, is_bf16, qkvz_.at(begin * qkvz_stride),
                                             qkvz_stride, ba_.at(begin * ba_stride), ba_stride)
                        : SeparateProjections(shape, is_bf16, qkv_.at(begin * qkv_stride),
                                              qkv_stride, z_.at(begin * z_stride), z_stride,
                                              b_.at(begin * gate_stride), gate_stride,
                                              a_.at(begin * gate_stride), gate_stride),
            .conv_weight = conv.data(),
            .a_log = a_log.data(),
            .dt_bias = dt_bias.data(),
            .norm_weight = norm.data(),
            .norm_eps = 1e-6f,
            .state_source = source,
            .state_target = target,
            .out = out.at(begin * width),
            .out_stride = width,
            .tokens = end - begin,
            .is_bf16 = is_bf16};
  }

  Activations NewOut() const {
    return Activations(
        std::vector<float>(size_t(tokens) * shape.value_heads * shape.value_dim, kNan), is_bf16);
  }

  const DeltaNetShape shape;
  const int tokens;
  const bool is_bf16;
  const int group, channels;
  std::vector<float> conv, a_log, dt_bias, norm;
  std::vector<float> x, z, b, a;  // [tokens, ...]: all q, all k, all v · z · b · a

 private:
  int64_t qkvz_stride, ba_stride, qkv_stride, z_stride, gate_stride;
  Activations qkvz_{0, false}, ba_{0, false}, qkv_{0, false}, z_{0, false}, b_{0, false},
      a_{0, false};
};

DeltaNetShape RandomShape(TestRandom& random) {
  const int dims[] = {8, 16, 24, 40, 64, 72, 128, random.Int(1, 90)};
  const int key_heads = random.Int(1, 4);
  return {key_heads, key_heads * random.Int(1, 4), dims[random.Int(0, 7)], dims[random.Int(0, 7)],
          random.Int(2, 4)};
}

void RunTasks(Isa isa, const DeltaNetArgs& args, bool chunked, bool reverse = false) {
  const int tasks = DeltaNetTasks(args.shape);
  for (int i = 0; i < tasks; ++i) {
    Buffer scratch(DeltaNetScratchBytes(args.shape));
    (chunked ? DeltaNetChunkedTask : DeltaNetTask)(isa, args, reverse ? tasks - 1 - i : i,
                                                   scratch.data());
  }
}

struct Element {
  double want, tolerance;
};

// The definition, in double, for one value head: out [tokens, value_dim] and how far fp32 may be
// from it.
std::vector<Element> Reference(const Layer& layer, int head) {
  const DeltaNetShape& s = layer.shape;
  const int key_head = head / layer.group, keys = s.key_heads * s.key_dim;
  auto rounded = [&](float v) { return double(layer.is_bf16 ? RoundToBf16(v) : v); };
  auto convolved = [&](int t, int channel) {
    double sum = 0;
    for (int j = 0; j < s.conv_kernel; ++j) {
      const int from = t - s.conv_kernel + 1 + j;
      if (from >= 0) {
        sum += double(layer.conv[int64_t{channel} * s.conv_kernel + j]) *
               rounded(layer.x[int64_t{from} * layer.channels + channel]);
      }
    }
    return sum / (1 + std::exp(-sum));
  };
  auto normalised = [&](int t, int channel) {
    std::vector<double> v(s.key_dim);
    double squares = 0;
    for (int d = 0; d < s.key_dim; ++d) {
      v[d] = convolved(t, channel + d);
      squares += v[d] * v[d];
    }
    for (double& e : v) e /= std::sqrt(squares + 1e-6);
    return v;
  };
  std::vector<double> state(size_t(s.key_dim) * s.value_dim);
  std::vector<Element> out;
  double largest = 0;  // u of any token so far
  for (int t = 0; t < layer.tokens; ++t) {
    const std::vector<double> q = normalised(t, key_head * s.key_dim),
                              k = normalised(t, keys + key_head * s.key_dim);
    const double x = rounded(layer.a[t * s.value_heads + head]) + layer.dt_bias[head];
    const double decay =
        std::exp(-std::exp(double(layer.a_log[head])) * (x > 20 ? x : std::log1p(std::exp(x))));
    const double beta = 1 / (1 + std::exp(-rounded(layer.b[t * s.value_heads + head])));
    std::vector<double> sums(s.value_dim);
    double squares = 0;
    for (int c = 0; c < s.value_dim; ++c) {
      double seen = 0;
      for (int d = 0; d < s.key_dim; ++d) seen += decay * state[d * s.value_dim + c] * k[d];
      const double u = beta * (convolved(t, 2 * keys + head * s.value_dim + c) - seen);
      largest = std::max(largest, std::abs(u));
      for (int d = 0; d < s.key_dim; ++d) {
        double& e = state[d * s.value_dim + c];
        e = decay * e + k[d] * u;
        sums[c] += e * q[d] / std::sqrt(double(s.key_dim));
      }
      squares += sums[c] * sums[c];
    }
    const double rms = std::sqrt(squares / s.value_dim + 1e-6);
    for (int c = 0; c < s.value_dim; ++c) {
      const double z = rounded(layer.z[(int64_t{t} * s.value_heads + head) * s.value_dim + c]);
      const double factor = layer.norm[c] * z / (1 + std::exp(-z)) / rms;
      // A step adds errors of a few roundings of u, those of k and q (16 and a half per sum over
      // key_dim) included; the state carries them on without growth.
      const double error = (t + s.key_dim + 32) * 2 * largest / std::sqrt(double(s.key_dim));
      out.push_back({sums[c] * factor,
                     std::abs(sums[c] * factor) * (ActivationEpsilon(layer.is_bf16) + 0x1p-18) +
                         error * 0x1p-24 * std::abs(factor) + 1e-37});
    }
  }
  return out;
}

void ExpectNearReference(const Layer& layer, const Activations& out, const std::string& what) {
  const DeltaNetShape& s = layer.shape;
  for (int head = 0; head < s.value_heads; ++head) {
    const std::vector<Element> want = Reference(layer, head);
    for (int t = 0; t < layer.tokens; ++t) {
      for (int c = 0; c < s.value_dim; ++c) {
        const Element& e = want[t * s.value_dim + c];
        ASSERT_NEAR(out.At((int64_t{t} * s.value_heads + head) * s.value_dim + c), e.want,
                    e.tolerance)
            << what << " key heads " << s.key_heads << " value heads " << s.value_heads << " dims "
            << s.key_dim << ", " << s.value_dim << " kernel " << s.conv_kernel << " head " << head
            << " token " << t << " of " << layer.tokens;
      }
    }
  }
}

TEST(DeltaNetTest, BothFormsEqualTheDefinition) {
  TestRandom random(51);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 24; ++trial) {
      const Layer layer(random, RandomShape(random), random.Int(1, 150), trial % 2 == 0);
      for (bool chunked : {false, true}) {
        Buffer state(DeltaNetStateBytes(layer.shape));
        Activations out = layer.NewOut();
        RunTasks(isa, layer.Args(trial % 4 < 2, 0, layer.tokens, nullptr, state.data(), out),
                 chunked);
        ExpectNearReference(layer, out,
                            fmt::format("isa {} {}", int(isa), chunked ? "chunked" : "recurrence"));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Also of the chunked form, whose later calls begin with a state.
TEST(DeltaNetTest, CallsOfAnyLengthEqualTheDefinition) {
  TestRandom random(52);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 8; ++trial) {
      const Layer layer(random, RandomShape(random), random.Int(100, 200), trial % 2 == 0);
      Buffer state(DeltaNetStateBytes(layer.shape));
      Activations out = layer.NewOut();
      for (int begin = 0; begin < layer.tokens;) {
        const int end = std::min(layer.tokens, begin + random.Int(1, 90));
        RunTasks(
            isa,
            layer.Args(true, begin, end, begin == 0 ? nullptr : state.data(), state.data(), out),
            /*chunked=*/true);
        begin = end;
      }
      ExpectNearReference(layer, out, fmt::format("isa {}", int(isa)));
      if (HasFatalFailure()) return;
    }
  }
}

TEST(DeltaNetTest, ChunksDecodeLayoutsAndOrderOfTasksGiveTheSameBits) {
  TestRandom random(53);
  for (Isa isa : RunnableIsas()) {
    for (int trial = 0; trial < 24; ++trial) {
      const Layer layer(random, RandomShape(random), random.Int(1, 200), trial % 2 == 0);
      const size_t bytes = DeltaNetStateBytes(layer.shape);
      Buffer whole(bytes), in_place(bytes), first(bytes), second(bytes);
      Activations want = layer.NewOut(), chunks = layer.NewOut(), decode = layer.NewOut();
      RunTasks(isa, layer.Args(true, 0, layer.tokens, nullptr, whole.data(), want), false);

      for (int begin = 0; begin < layer.tokens;) {
        const int end = std::min(layer.tokens, begin + random.Int(1, 90));
        RunTasks(isa,
                 layer.Args(false, begin, end, begin == 0 ? nullptr : in_place.data(),
                            in_place.data(), chunks),
                 false, /*reverse=*/true);
        begin = end;
      }
      EXPECT_TRUE(want == chunks);
      EXPECT_TRUE(whole == in_place);

      Buffer *source = &first, *target = &second;
      for (int t = 0; t < layer.tokens; ++t) {
        RunTasks(
            isa,
            layer.Args(true, t, t + 1, t == 0 ? nullptr : source->data(), target->data(), decode),
            false);
        std::swap(source, target);
      }
      EXPECT_TRUE(want == decode);
      EXPECT_TRUE(whole == *source);
    }
  }
}

TEST(DeltaNetTest, AStepCanBeRepeatedFromItsSource) {
  TestRandom random(54);
  for (Isa isa : RunnableIsas()) {
    for (bool chunked : {false, true}) {
      const Layer layer(random, {2, 4, 24, 40, 4}, 100, true);
      const size_t bytes = DeltaNetStateBytes(layer.shape);
      Buffer source(bytes), copy(bytes), target(bytes), again(bytes);
      Activations out = layer.NewOut();
      RunTasks(isa, layer.Args(true, 0, 30, nullptr, source.data(), out), chunked);
      std::memcpy(copy.data(), source.data(), bytes);
      RunTasks(isa, layer.Args(true, 30, 100, source.data(), target.data(), out), chunked);
      EXPECT_TRUE(source == copy);
      Activations repeated = out;
      RunTasks(isa, layer.Args(true, 30, 100, copy.data(), again.data(), repeated), chunked);
      EXPECT_TRUE(out == repeated);
      EXPECT_TRUE(target == again);
    }
  }
}

TEST(DeltaNetTest, AnInputThatIsNotFiniteShowsFromItsTokenOnInItsHeadsAlone) {
  TestRandom random(55);
  for (Isa isa : RunnableIsas()) {
    for (float poison : {kNan, std::numeric_limits<float>::infinity()}) {
      for (bool chunked : {false, true}) {
        const int bad = 40, key_dim = 16, value_dim = 24;
        Layer layer(random, {2, 4, key_dim, value_dim, 4}, 70, false);
        std::fill(layer.a_log.begin(), layer.a_log.end(), -9);     // nothing is forgotten
        layer.x[bad * layer.channels + 2 * key_dim + 3] = poison;  // in k of key head 0
        layer.LayOut();
        Buffer state(DeltaNetStateBytes(layer.shape));
        Activations out = layer.NewOut();
        RunTasks(isa, layer.Args(true, 0, layer.tokens, nullptr, state.data(), out), chunked);
        for (int t = 0; t < layer.tokens; ++t) {
          for (int key_head : {0, 1}) {
            bool finite = true;
            for (int i = 0; i < 2 * value_dim; ++i)
              finite = finite && std::isfinite(out.At((2 * t + key_head) * 2 * value_dim + i));
            if (key_head == 1 || (t < bad && !chunked)) {
              EXPECT_TRUE(finite) << t;
            } else if (t >= bad) {
              EXPECT_FALSE(finite) << t;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kt
