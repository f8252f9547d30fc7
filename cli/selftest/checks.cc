// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest/checks.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "common/base/status.h"

namespace kt {
namespace {

constexpr double kFp32Bound = 1e-3, kFp32WeightBound = 1e-4;
constexpr double kBf16MeanFloor = 0.15, kBf16MaxFloor = 1.0;
constexpr double kBf16RouterNoise = 0.03;  // two to three times the root mean square measured
constexpr double kBf16FlippedShareMax = 0.25;

struct Difference {
  double max = 0, mean = 0;
  size_t at = 0;  // where the largest is
};

// NaN counts as infinite.
Difference Compare(std::span<const float> got, std::span<const float> want) {
  Difference d;
  for (size_t i = 0; i < want.size(); ++i) {
    double x = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (!(x <= 1e30)) x = 1e30;
    if (x > d.max) d.max = x, d.at = i;
    d.mean += x / static_cast<double>(want.size());
  }
  return d;
}

std::set<int32_t> Row(std::span<const int32_t> ids, size_t row, size_t width) {
  const auto part = ids.subspan(row * width, width);
  return {part.begin(), part.end()};
}

class Checker {
 public:
  Checker(const Golden& golden, bool float32, const std::map<int, RouterRule>& rules,
          TraceClient& client)
      : golden_(golden), float32_(float32), rules_(rules), client_(client) {}

  absl::Status Prompt(const std::string& p) {
    const std::vector<int32_t>& ids = golden_.Find(p + ".input_ids")->ints;
    const std::vector<int32_t>& greedy = golden_.Find(p + ".greedy_ids")->ints;
    proto::TraceRequest request;
    request.mutable_token_ids()->Add(ids.begin(), ids.end());
    request.mutable_capture()->set_logits(true);
    request.mutable_capture()->set_hidden(p == "short");
    request.mutable_capture()->set_routing(p == "short" || !float32_);
    KT_ASSIGN_OR_RETURN(Trace trace, client_.Run(request));
    KT_RETURN_IF_ERROR(LastLogits(p, trace, ids.size()));
    if (p == "short") {
      if (float32_) KT_RETURN_IF_ERROR(Hidden(trace, ids.size()));
      KT_RETURN_IF_ERROR(Routing(trace, ids.size()));
    }
    proto::TraceRequest sampled;
    *sampled.mutable_token_ids() = request.token_ids();
    sampled.set_max_new_tokens(static_cast<int>(greedy.size()));
    sampled.set_greedy(true);
    KT_ASSIGN_OR_RETURN(Trace generated, client_.Run(sampled));
    Greedy(p, generated.token_ids, greedy);
    return TeacherForced(p, ids, greedy);
  }

  std::vector<CheckRow> rows;

 private:
  void Add(const std::string& name, double value, double bound, std::string note = "") {
    rows.push_back({name, value, bound, value <= bound, std::move(note)});
  }

  // The largest difference from a golden tensor [rows, n], and where it is if it is too large.
  void AddMax(const std::string& name, const std::string& tensor, std::span<const float> got,
              double bound) {
    const GoldenTensor& want = *golden_.Find(tensor);
    const Difference d = Compare(got, want.values);
    const size_t n = static_cast<size_t>(want.shape.back());
    Add(name, d.max, bound,
        d.max <= bound ? ""
                       : fmt::format("{}[{}, {}]: got {}, golden {}", tensor, d.at / n, d.at % n,
                                     got[d.at], want.values[d.at]));
  }

  // Logits of the positions from `first` on against a golden tensor [rows, vocab].
  absl::Status AddLogits(const std::string& prompt, const std::string& name,
                         const std::string& tensor, const Trace& trace, size_t first) {
    const GoldenTensor& want = *golden_.Find(tensor);
    const size_t vocab = static_cast<size_t>(want.shape.back()), n = want.values.size() / vocab;
    if (trace.logits.size() != (first + n) * vocab) {
      return Internal("selftest: {} logits for the {} positions up to those of {} with {} each",
                      trace.logits.size(), first + n, tensor, vocab);
    }
    const auto got = std::span(trace.logits).subspan(first * vocab);
    if (float32_) {
      AddMax(name + " max", tensor, got, kFp32Bound);
      return absl::OkStatus();
    }
    const Bf16Noise noise = golden_.noise(prompt);
    Add(name + " mean", Compare(got, want.values).mean,
        std::max(kBf16MeanFloor, 3 * noise.mean_abs));
    KT_ASSIGN_OR_RETURN(const auto near_tie_layers, NearTieLayers(trace, first + n));
    std::vector<PositionDifference> positions;
    for (size_t r = 0; r < n; ++r) {
      positions.push_back(
          {Compare(got.subspan(r * vocab, vocab), std::span(want.values).subspan(r * vocab, vocab))
               .max,
           near_tie_layers[first + r]});
    }
    rows.push_back(
        CheckBf16Max(name + " max", positions, std::max(kBf16MaxFloor, 3 * noise.max_abs)));
    return absl::OkStatus();
  }

  // For each position the first layer whose choice of experts was a near-tie.
  absl::StatusOr<std::vector<std::optional<int>>> NearTieLayers(const Trace& trace, size_t tokens) {
    std::vector<std::optional<int>> layers(tokens);
    for (const auto& [layer, rule] : rules_) {
      const auto captured = trace.routing.find(layer);
      const auto experts = static_cast<size_t>(rule.moe.num_experts),
                 k = static_cast<size_t>(rule.moe.top_k);
      if (captured == trace.routing.end() || captured->second.ids.size() != tokens * k ||
          captured->second.logits.size() != tokens * experts) {
        return Internal("selftest: the routing of layer {} was not captured for {} positions",
                        layer, tokens);
      }
      const RoutingTrace& routing = captured->second;
      for (size_t t = 0; t < tokens; ++t) {
        if (!layers[t] && IsNearTie(rule, std::span(routing.logits).subspan(t * experts, experts),
                                    std::span(routing.ids).subspan(t * k, k), kBf16RouterNoise))
          layers[t] = layer;
      }
    }
    return layers;
  }

  absl::Status LastLogits(const std::string& p, const Trace& trace, size_t tokens) {
    const auto rows_wanted = static_cast<size_t>(golden_.Find(p + ".logits")->shape[0]);
    if (tokens < rows_wanted)
      return InvalidArgument("golden.safetensors: {}.logits has {} positions, the prompt {}", p,
                             rows_wanted, tokens);
    return AddLogits(p, p + " logits", p + ".logits", trace, tokens - rows_wanted);
  }

  absl::Status Hidden(const Trace& trace, size_t tokens) {
    for (size_t i = 0; i < trace.hidden.size(); ++i) {
      bool last = i + 1 == trace.hidden.size();
      std::string name = "short.hidden." + (last ? std::string("norm") : std::to_string(i));
      const GoldenTensor* want = golden_.Find(name);
      if (want == nullptr) continue;
      if (trace.hidden[i].size() != want->values.size()) {
        return Internal("selftest: {} has {} values for {} tokens, expected {}", name,
                        trace.hidden[i].size(), tokens, want->values.size());
      }
      AddMax(name, name, trace.hidden[i], kFp32Bound);
    }
    return absl::OkStatus();
  }

  absl::Status Routing(const Trace& trace, size_t tokens) {
    KT_ASSIGN_OR_RETURN(const auto near_tie_layers, NearTieLayers(trace, tokens));
    for (int layer : golden_.routed_layers()) {
      const std::string prefix = "short.routing." + std::to_string(layer);
      const auto captured = trace.routing.find(layer);
      const GoldenTensor* ids = golden_.Find(prefix + ".expert_ids");
      const GoldenTensor* weights = golden_.Find(prefix + ".weights");
      const GoldenTensor* logits = golden_.Find(prefix + ".router_logits");
      if (captured == trace.routing.end() || weights == nullptr || logits == nullptr ||
          ids->shape.size() != 2 || captured->second.ids.size() != ids->ints.size() ||
          captured->second.weights.size() != weights->values.size() ||
          captured->second.logits.size() != logits->values.size()) {
        return Internal("selftest: layer {} was not captured as the golden file has it", layer);
      }
      const RoutingTrace& got = captured->second;
      const auto k = static_cast<size_t>(ids->shape[1]);
      int wrong = 0;
      std::string note;
      for (size_t t = 0; t < tokens; ++t) {
        const std::set<int32_t> chosen = Row(got.ids, t, k), golden = Row(ids->ints, t, k);
        // In bf16 a near-tie here or in a layer before may have gone the other way.
        if (chosen == golden || (!float32_ && near_tie_layers[t] <= layer && near_tie_layers[t]))
          continue;
        if (wrong++ == 0)
          note = fmt::format("{}[{}]: got {{{}}}, golden {{{}}}", prefix + ".expert_ids", t,
                             fmt::join(chosen, ", "), fmt::join(golden, ", "));
      }
      Add(prefix + ".expert_ids", wrong, 0, note);
      if (!float32_) continue;
      AddMax(prefix + ".weights", prefix + ".weights", got.weights, kFp32WeightBound);
      AddMax(prefix + ".router_logits", prefix + ".router_logits", got.logits, kFp32Bound);
    }
    return absl::OkStatus();
  }

  void Greedy(const std::string& p, const std::vector<int32_t>& got,
              const std::vector<int32_t>& want) {
    const GoldenTensor* margins = golden_.Find(p + ".greedy_margin");
    size_t same = 0;
    while (same < std::min(got.size(), want.size()) && got[same] == want[same]) ++same;
    if (same == want.size()) return Add(p + " greedy", 0, 0, fmt::format("{} tokens equal", same));
    double margin = margins != nullptr && same < margins->values.size()
                        ? static_cast<double>(margins->values[same])
                        : 1e30;
    double allowed = float32_ ? 0 : 2 * std::max(golden_.noise(p).max_abs, kBf16MaxFloor);
    bool ok = margin < allowed;
    rows.push_back(
        {p + " greedy", ok ? 0 : static_cast<double>(want.size() - same), 0, ok,
         fmt::format("first {} of {} tokens equal, then got {}, golden {}; margin there {:.3f}, "
                     "noise allows {:.3f}",
                     same, want.size(), same < got.size() ? std::to_string(got[same]) : "nothing",
                     want[same], margin, allowed)});
  }

  // The golden continuation as a prompt: the logits from which each of its tokens was chosen.
  absl::Status TeacherForced(const std::string& p, const std::vector<int32_t>& ids,
                             const std::vector<int32_t>& greedy) {
    if (golden_.Find(p + ".greedy_logits") == nullptr) return absl::OkStatus();
    proto::TraceRequest request;
    request.mutable_token_ids()->Add(ids.begin(), ids.end());
    request.mutable_token_ids()->Add(greedy.begin(), greedy.end() - 1);
    request.mutable_capture()->set_logits(true);
    request.mutable_capture()->set_routing(!float32_);
    KT_ASSIGN_OR_RETURN(Trace trace, client_.Run(request));
    return AddLogits(p, p + " continuation logits", p + ".greedy_logits", trace, ids.size() - 1);
  }

  const Golden& golden_;
  const bool float32_;
  const std::map<int, RouterRule>& rules_;
  TraceClient& client_;
};

}  // namespace

CheckRow CheckBf16Max(std::string name, std::span<const PositionDifference> positions,
                      double bound) {
  CheckRow row{.name = std::move(name), .bound = bound};
  double flipped_max = 0;
  std::vector<std::string> flipped;
  for (size_t i = 0; i < positions.size(); ++i) {
    const auto& [difference, near_tie_layer] = positions[i];
    if (difference > bound && near_tie_layer) {
      flipped_max = std::max(flipped_max, difference);
      flipped.push_back(fmt::format("{} (layer {})", i, *near_tie_layer));
    } else if (difference > row.value) {
      row.value = difference;
      if (difference > bound) row.note = fmt::format("position {} and no near-tie there", i);
    }
  }
  const bool few = static_cast<double>(flipped.size()) <=
                   kBf16FlippedShareMax * static_cast<double>(positions.size());
  row.ok = row.value <= bound && few;
  if (!flipped.empty()) {
    row.note +=
        fmt::format("{}without {} of {} positions up to {:.2f}, near-ties of the router: {}",
                    row.note.empty() ? "" : "; ", flipped.size(), positions.size(), flipped_max,
                    fmt::join(flipped, ", "));
    if (!few) row.note += fmt::format("; at most {:.0f} % may be", 100 * kBf16FlippedShareMax);
  }
  return row;
}

absl::StatusOr<std::vector<CheckRow>> RunGoldenChecks(const Golden& golden, bool float32,
                                                      const std::map<int, RouterRule>& rules,
                                                      TraceClient& client) {
  Checker checker(golden, float32, rules, client);
  for (const std::string& prompt : golden.prompts()) KT_RETURN_IF_ERROR(checker.Prompt(prompt));
  return std::move(checker.rows);
}

}  // namespace kt
