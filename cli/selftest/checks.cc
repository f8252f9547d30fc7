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
  Checker(const Golden& golden, const ReferenceRouting* reference, TraceClient& client)
      : golden_(golden), float32_(reference == nullptr), reference_(reference), client_(client) {}

  absl::Status Prompt(const std::string& p) {
    const std::vector<int32_t>& ids = golden_.Find(p + ".input_ids")->ints;
    const std::vector<int32_t>& greedy = golden_.Find(p + ".greedy_ids")->ints;
    proto::TraceRequest request;
    request.mutable_token_ids()->Add(ids.begin(), ids.end());
    request.mutable_capture()->set_logits(true);
    request.mutable_capture()->set_hidden(p == "short");
    request.mutable_capture()->set_routing(p == "short" || !float32_);
    request.mutable_capture()->set_selection(!golden_.indexed_layers(p).empty());
    if (!float32_ && ids.size() > IndexerTopK()) return NotCompared(p);
    KT_ASSIGN_OR_RETURN(Trace trace, client_.Run(request));
    KT_RETURN_IF_ERROR(LastLogits(p, trace, ids.size()));
    if (float32_) KT_RETURN_IF_ERROR(Selections(p, trace));
    if (p == "short" && float32_) {
      KT_RETURN_IF_ERROR(Hidden(trace, ids.size()));
      KT_RETURN_IF_ERROR(Routing(trace, ids.size()));
    }
    if (!float32_ && ids.size() + greedy.size() > IndexerTopK())
      return NotCompared(p + " continuation");
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
    KT_ASSIGN_OR_RETURN(const auto flipped,
                        FlippedLayers(reference_->at(prompt), trace, first + n));
    std::vector<PositionDifference> positions;
    for (size_t r = 0; r < n; ++r) {
      const Difference d =
          Compare(got.subspan(r * vocab, vocab), std::span(want.values).subspan(r * vocab, vocab));
      positions.push_back({d.mean, d.max, flipped[first + r]});
    }
    const Bf16Noise noise = golden_.noise(prompt);
    for (CheckRow& row : CheckBf16(name, positions, std::max(kBf16MeanFloor, 3 * noise.mean_abs),
                                   std::max(kBf16MaxFloor, 3 * noise.max_abs)))
      rows.push_back(std::move(row));
    return absl::OkStatus();
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
        if (chosen == golden) continue;
        if (wrong++ == 0)
          note = fmt::format("{}[{}]: got {{{}}}, golden {{{}}}", prefix + ".expert_ids", t,
                             fmt::join(chosen, ", "), fmt::join(golden, ", "));
      }
      Add(prefix + ".expert_ids", wrong, 0, note);
      AddMax(prefix + ".weights", prefix + ".weights", got.weights, kFp32WeightBound);
      AddMax(prefix + ".router_logits", prefix + ".router_logits", got.logits, kFp32Bound);
    }
    return absl::OkStatus();
  }

  // Positions that a query of the model attends to at most.
  size_t IndexerTopK() const {
    for (const std::string& p : golden_.prompts()) {
      for (int layer : golden_.indexed_layers(p))
        return golden_.Find(fmt::format("{}.indexer.{}.last_topk", p, layer))->ints.size();
    }
    return SIZE_MAX;
  }

  // Where a sparse indexer chooses, rounding to bf16 flips choices, which changes logits at will.
  absl::Status NotCompared(const std::string& name) {
    rows.push_back({name, 0, 0, true, "not compared in bf16: the indexer chooses positions"});
    return absl::OkStatus();
  }

  absl::Status Selections(const std::string& p, const Trace& trace) {
    for (int layer : golden_.indexed_layers(p)) {
      std::string name = fmt::format("{}.indexer.{}.last_topk", p, layer);
      auto it = trace.selections.find(layer);
      if (it == trace.selections.end())
        return Internal("selftest: the selection of layer {} was not captured", layer);
      std::set<int32_t> got(it->second.begin(), it->second.end());
      const std::vector<int32_t>& ints = golden_.Find(name)->ints;
      std::set<int32_t> want(ints.begin(), ints.end());
      std::vector<int32_t> missing;
      std::set_difference(want.begin(), want.end(), got.begin(), got.end(),
                          std::back_inserter(missing));
      Add(name, static_cast<double>(missing.size()) + (got.size() == want.size() ? 0 : 1), 0,
          "positions not chosen");
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
  const ReferenceRouting* const reference_;
  TraceClient& client_;
};

}  // namespace

std::vector<CheckRow> CheckBf16(const std::string& name,
                                std::span<const PositionDifference> positions, double mean_bound,
                                double max_bound) {
  double sum = 0, max = 0;
  std::vector<std::string> flipped;
  for (size_t i = 0; i < positions.size(); ++i) {
    const PositionDifference& p = positions[i];
    if (p.flipped_layer) {
      flipped.push_back(fmt::format("{} (layer {})", i, *p.flipped_layer));
      continue;
    }
    sum += p.mean;
    if (flipped.empty()) max = std::max(max, p.max);
  }
  const size_t compared = positions.size() - flipped.size();
  const double mean = compared == 0 ? 0 : sum / static_cast<double>(compared);
  const std::string note =
      flipped.empty()
          ? ""
          : fmt::format("without {} of {} positions, routed otherwise than in float32: {}",
                        flipped.size(), positions.size(), fmt::join(flipped, ", "));
  return {{name + " mean", mean, mean_bound, mean <= mean_bound, note},
          {name + " max", max, max_bound, max <= max_bound,
           flipped.empty() ? "" : "before the first of them"}};
}

absl::StatusOr<std::vector<CheckRow>> RunGoldenChecks(const Golden& golden,
                                                      const ReferenceRouting* reference,
                                                      TraceClient& client) {
  Checker checker(golden, reference, client);
  for (const std::string& prompt : golden.prompts()) KT_RETURN_IF_ERROR(checker.Prompt(prompt));
  return std::move(checker.rows);
}

absl::StatusOr<std::vector<CheckRow>> RunSelfChecks(TraceClient& client) {
  KT_ASSIGN_OR_RETURN(proto::SelfCheckReplies replies, client.SelfCheck());
  std::vector<CheckRow> rows;
  for (const proto::WorkerSelfCheck& worker : replies.workers()) {
    for (const proto::SelfCheckRow& r : worker.reply().rows()) {
      std::string where = r.layer() < 0 ? "" : fmt::format(" layer {}", r.layer());
      rows.push_back({fmt::format("{}{} {}", worker.worker(), where, r.part()), r.error(),
                      r.bound(), r.error() <= r.bound(),
                      fmt::format("{}, {} against scalar", r.precision(), worker.isa())});
    }
  }
  return rows;
}

}  // namespace kt
