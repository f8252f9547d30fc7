// SPDX-License-Identifier: Apache-2.0
// Times whole MoE layers (MoeFfn) with weights that come from DRAM, next to what this machine reads
// and multiplies in the same run.
//   limit          max(bytes of the active experts / read bandwidth, operations / peak)
//   share_of_limit limit / time of the best call; the median over all calls stands beside it
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <random>
#include <thread>
#include <vector>

#include "benchmarks/kernels/machine_peak.h"
#include "common/base/aligned_buffer.h"
#include "common/base/json.h"
#include "common/base/status.h"
#include "kernels/cpu/expert_ffn/moe_ffn.h"

namespace kt {
namespace {

constexpr size_t kArenaBytes = size_t{768} << 20;  // far above any cache
constexpr int kRoutings = 16;                      // different calls that are cycled through

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Threads that spin between runs: the benchmark wants their best, not their manners.
class SpinningThreads final : public Parallel {
 public:
  explicit SpinningThreads(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { Work(i); });
  }
  ~SpinningThreads() override {
    stop_ = true;
    for (std::thread& worker : workers_) worker.join();
  }
  int threads() const override { return static_cast<int>(workers_.size()) + 1; }
  void Run(int tasks, FunctionRef<void(int, int)> f) override {
    task_ = &f;
    tasks_ = tasks;
    next_ = 0;
    busy_ = threads() - 1;
    ++generation_;
    Drain(0);
    while (busy_ > 0) __builtin_ia32_pause();
  }

 private:
  void Drain(int thread) {
    for (int i; (i = next_++) < tasks_;) (*task_)(i, thread);
  }
  void Work(int thread) {
    for (int seen = 0; !stop_; __builtin_ia32_pause()) {
      if (generation_ == seen) continue;
      ++seen;
      Drain(thread);
      --busy_;
    }
  }

  std::vector<std::thread> workers_;
  const FunctionRef<void(int, int)>* task_ = nullptr;
  int tasks_ = 0;
  std::atomic<int> next_{0}, busy_{0}, generation_{0};
  std::atomic<bool> stop_{false};
};

struct Machine {
  double bytes_per_s = 0, flops = 0;  // the best seen so far

  void Measure(Isa isa, const AlignedBuffer& arena, Parallel& parallel) {
    const int threads = parallel.threads();
    std::vector<float> sums(threads);
    double start;
    for (int streams : {1, 2, 4, 1, 2, 4}) {
      if (window_ + kWindowBytes > arena.size()) window_ = 0;
      const char* data = arena.As<char>() + window_;
      const long part = kWindowBytes / threads / 128 * 128;
      start = Seconds();
      parallel.Run(threads, [&](int task, int) {
        ReadMemory(data + task * part, part, streams, &sums[task]);
      });
      bytes_per_s = std::max(bytes_per_s, threads * part / (Seconds() - start));
      window_ += kWindowBytes;
    }
    constexpr double (*kMultiplyAdds[])(long, float*) = {&scalar::MultiplyAdds, &avx2::MultiplyAdds,
                                                         &avx512f::MultiplyAdds,
                                                         &avx512bf16::MultiplyAdds};
    std::vector<double> done(threads);
    start = Seconds();
    parallel.Run(threads, [&](int task, int) {
      done[task] = kMultiplyAdds[static_cast<int>(isa)](1'000'000, &sums[task]);
    });
    double total = 0;
    for (double d : done) total += d;
    flops = std::max(flops, total / (Seconds() - start));
    volatile float sink = sums[0];
    (void)sink;
  }

 private:
  static constexpr size_t kWindowBytes =
      size_t{48} << 20;  // short enough to be read undisturbed on a shared machine now and then
  size_t window_ = 0;    // moves through the arena, so that it is never in a cache
};

// Weights of as many layers as fill the arena, in packed form.
struct Weights {
  explicit Weights(const MoeShape& shape)
      : matrix_bytes(PackedBytes(shape.intermediate, shape.hidden, {})) {
    const size_t down_bytes = PackedBytes(shape.hidden, shape.intermediate, {});
    const size_t layer_bytes = shape.num_experts * (2 * matrix_bytes + down_bytes);
    layers = static_cast<int>(kArenaBytes / layer_bytes) + 1;
    arena = AlignedBuffer(layers * layer_bytes);
    madvise(arena.data(), arena.size(), MADV_HUGEPAGE);
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < arena.size() / 8; ++i) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      arena.As<uint64_t>()[i] =
          (state & 0x807f807f807f807fu) | 0x3c003c003c003c00u;  // +-[2^-7, 2^-6)
    }
    const uint8_t* at = arena.data();
    for (int e = 0; e < layers * shape.num_experts; ++e, at += 2 * matrix_bytes + down_bytes) {
      experts.push_back(
          {{.data = at, .n = shape.intermediate, .k = shape.hidden},
           {.data = at + matrix_bytes, .n = shape.intermediate, .k = shape.hidden},
           {.data = at + 2 * matrix_bytes, .n = shape.hidden, .k = shape.intermediate}});
    }
  }

  size_t matrix_bytes;
  int layers;
  AlignedBuffer arena;
  std::vector<ExpertWeights> experts;  // [layers][num_experts]
};

struct Sample {
  double seconds, bytes, operations;
};

struct Case {
  int tokens;
  std::vector<uint8_t> x;
  std::vector<int32_t> ids;  // [kRoutings][tokens][top_k], distinct within a token
  std::vector<float> weights, y;
  std::vector<double> bytes;  // [kRoutings], of the experts that are active
  std::vector<Sample> samples;

  Case(const MoeShape& shape, int tokens, bool x_is_bf16)
      : tokens(tokens), weights(tokens * shape.top_k, 0.125f), y(size_t(tokens) * shape.hidden) {
    std::mt19937 rng(tokens);
    std::normal_distribution<float> normal;
    for (int i = 0; i < tokens * shape.hidden; ++i) {
      const float value = RoundToBf16(normal(rng));
      const uint8_t* bytes_of = reinterpret_cast<const uint8_t*>(&value);
      x.insert(x.end(), bytes_of + (x_is_bf16 ? 2 : 0), bytes_of + 4);
    }
    std::vector<int32_t> all(shape.num_experts);
    for (int e = 0; e < shape.num_experts; ++e) all[e] = e;
    for (int routing = 0; routing < kRoutings; ++routing) {
      std::vector<bool> active(shape.num_experts);
      for (int t = 0; t < tokens; ++t) {
        std::shuffle(all.begin(), all.end(), rng);
        ids.insert(ids.end(), all.begin(), all.begin() + shape.top_k);
        for (int s = 0; s < shape.top_k; ++s) active[all[s]] = true;
      }
      const size_t expert_bytes = 2 * PackedBytes(shape.intermediate, shape.hidden, {}) +
                                  PackedBytes(shape.hidden, shape.intermediate, {});
      bytes.push_back(double(expert_bytes) * std::count(active.begin(), active.end(), true));
    }
  }
};

absl::StatusOr<MoeShape> ParseShape(const std::string& name) {
  if (name == "qwen3-30b") return MoeShape{2048, 768, 128, 8};
  if (name == "demo") return MoeShape{576, 128, 16, 8};
  MoeShape s;
  int end = 0;
  const int read = std::sscanf(name.c_str(), "%dx%dx%dx%d%n", &s.hidden, &s.intermediate,
                               &s.num_experts, &s.top_k, &end);
  if (read != 4 || end != static_cast<int>(name.size()) ||
      std::min({s.hidden, s.intermediate, s.top_k}) < 1 || s.top_k > s.num_experts) {
    return InvalidArgument("--shape {}: use qwen3-30b, demo or HIDDENxINTERMEDIATExEXPERTSxTOPK",
                           name);
  }
  return s;
}

struct Options {
  std::vector<std::string> shapes = {"qwen3-30b", "demo"};
  std::vector<int> tokens = {1, 4, 16, 64, 512};
  std::vector<int> threads = {1, 2};
  int rounds = 7;
  bool float32 = false, json = false;
};

Json Row(const std::string& shape, const Case& c, int threads, Isa isa, const Options& options,
         const Machine& machine) {
  std::vector<double> shares, ms;
  Sample best{};
  double limit = 0;
  for (const Sample& sample : c.samples) {
    const double bound =
        std::max(sample.bytes / machine.bytes_per_s, sample.operations / machine.flops);
    shares.push_back(bound / sample.seconds);
    ms.push_back(sample.seconds * 1e3);
    if (shares.back() == *std::max_element(shares.begin(), shares.end()))
      best = sample, limit = bound;
  }
  std::nth_element(shares.begin(), shares.begin() + shares.size() / 2, shares.end());
  std::nth_element(ms.begin(), ms.begin() + ms.size() / 2, ms.end());
  return {{"format", options.float32 ? "BF16 x fp32" : "BF16"},
          {"isa", IsaName(isa)},
          {"shape", shape},
          {"tokens", c.tokens},
          {"threads", threads},
          {"ms", best.seconds * 1e3},
          {"ms_median", ms[ms.size() / 2]},
          {"gbytes_per_s", best.bytes / best.seconds / 1e9},
          {"gflops", best.operations / best.seconds / 1e9},
          {"limit", limit * 1e3},
          {"limited_by",
           best.bytes / machine.bytes_per_s > best.operations / machine.flops ? "read" : "compute"},
          {"share_of_limit", limit / best.seconds},
          {"share_of_limit_median", shares[shares.size() / 2]},
          {"machine_gbytes_per_s", machine.bytes_per_s / 1e9},
          {"machine_gflops", machine.flops / 1e9}};
}

void RunShape(const std::string& name, const MoeShape& shape, Isa isa, const Options& options,
              Json& rows) {
  const Weights weights(shape);
  const int tokens_max = *std::max_element(options.tokens.begin(), options.tokens.end());
  const MoeFfn ffn(shape, isa, tokens_max);
  for (int threads : options.threads) {
    SpinningThreads parallel(threads);
    AlignedBuffer scratch(ffn.ScratchBytes(threads));
    madvise(scratch.data(), scratch.size(), MADV_HUGEPAGE);
    Machine machine;
    std::vector<Case> cases;
    for (int tokens : options.tokens) cases.emplace_back(shape, tokens, !options.float32);
    int call = 0;
    for (int round = 0; round < options.rounds; ++round) {
      for (Case& c : cases) {
        machine.Measure(isa, weights.arena, parallel);
        const int repeats = std::max(2, 64 / c.tokens);
        for (int i = 0; i < repeats; ++i, ++call) {
          const int routing = call % kRoutings, slots = c.tokens * shape.top_k;
          const MoeArgs args{
              c.x.data(),       !options.float32,
              c.tokens,         c.ids.data() + routing * slots,
              c.weights.data(), weights.experts.data() + call % weights.layers * shape.num_experts,
              c.y.data()};
          const double start = Seconds();
          ffn.Run(args, scratch.data(), parallel);
          c.samples.push_back({Seconds() - start, c.bytes[routing],
                               6.0 * slots * shape.hidden * shape.intermediate});
        }
      }
    }
    for (const Case& c : cases) {
      rows.push_back(Row(name, c, threads, isa, options, machine));
      if (options.json) continue;
      const Json& r = rows.back();
      std::cout << fmt::format(
                       "{:<10} {:>4} tokens {} threads {:>9.3f} ms (median {:>9.3f}) {:>6.1f} GB/s "
                       "of {:>5.1f} {:>7.1f} GFLOP/s of {:>5.0f}  {:>3.0f} % of the {} limit "
                       "(median {:.0f} %)\n",
                       name, c.tokens, threads, r["ms"].get<double>(), r["ms_median"].get<double>(),
                       r["gbytes_per_s"].get<double>(), r["machine_gbytes_per_s"].get<double>(),
                       r["gflops"].get<double>(), r["machine_gflops"].get<double>(),
                       r["share_of_limit"].get<double>() * 100, r["limited_by"].get<std::string>(),
                       r["share_of_limit_median"].get<double>() * 100)
                << std::flush;
    }
  }
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Times MoE layers on the CPU against the limits of the machine. KT_FORCE_ISA picks the "
      "kernels.");
  app.add_option("--shape", options.shapes, "qwen3-30b, demo or HIDDENxINTERMEDIATExEXPERTSxTOPK")
      ->capture_default_str();
  app.add_option("--tokens", options.tokens)->check(CLI::Range(1, 16384))->capture_default_str();
  app.add_option("--threads", options.threads)->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--rounds", options.rounds, "measurements of every case, interleaved")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--float32", options.float32, "fp32 activations");
  app.add_flag("--json", options.json, "an array of rows on stdout");
  CLI11_PARSE(app, argc, argv);
  const absl::StatusOr<Isa> isa = SelectIsa();
  absl::Status status = isa.status();
  Json rows = Json::array();
  if (isa.ok()) {
    if (!options.json) std::cout << CpuModelName() << ", " << IsaName(*isa) << "\n";
    for (const std::string& name : options.shapes) {
      const absl::StatusOr<MoeShape> shape = ParseShape(name);
      status.Update(shape.status());
      if (shape.ok()) RunShape(name, *shape, *isa, options, rows);
    }
  }
  if (!status.ok()) {
    std::cerr << Message(status) << "\n";
    return 1;
  }
  if (options.json) std::cout << DumpJson(rows, 1) << "\n";
  return 0;
}

}  // namespace
}  // namespace kt

int main(int argc, char** argv) { return kt::Main(argc, argv); }
