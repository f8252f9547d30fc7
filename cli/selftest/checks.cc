// SPDX-License-Identifier: Apache-2.0
#include "cli/selftest/checks.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <span>

#include "common/base/status.h"

namespace kt {
namespace {

constexpr double kFp32Bound = 1e-3, kFp32WeightBound = 1e-4;
constexpr double kBf16MeanFloor = 0.15, kBf16MaxFloor = 1.0;
// In bf16 a near-tie of the router may flip, which moves the logits of that position by far more
// than rounding does. So a few positions may lie beyond the bound on the maximum as long as the
// mean over all of them holds.
constexpr double kBf16FlippedShareMax = 0.25;

struct Difference {
  double max = 0, mean = 0;
};

// NaN counts as infinite.
Difference Compare(std::span<const float> got, std::span<const float> want) {
  Difference d;
  for (size_t i = 0; i < want.size(); ++i) {
    double x = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (!(x <= 1e30)) x = 1e30;
    d.max = std::max(d.max, x);
    d.mean += x / static_cast<double>(want.size());
  }
  return d;
}

class Checker {
 public:
  Checker(const Golden& golden, bool float32, TraceClient& client)
      : golden_(golden), float32_(float32), client_(client) {}

  absl::Status Prompt(const std::string& p) {
    const std::vector<int32_t>& ids = golden_.Find(p + ".input_ids")->ints;
    const std::vector<int32_t>& greedy = golden_.Find(p + ".greedy_ids")->ints;
    proto::TraceRequest request;
    request.mutable_token_ids()->Add(ids.begin(), ids.end());
    request.mutable_capture()->set_logits(true);
    request.mutable_capture()->set_hidden(p == "short");
    request.mutable_capture()->set_routing(p == "short");
    request.mutable_capture()->set_selection(!golden_.indexed_layers(p).empty());
    if (!float32_ && ids.size() > IndexerTopK()) return NotCompared(p);
    KT_ASSIGN_OR_RETURN(Trace trace, client_.Run(request));
    KT_RETURN_IF_ERROR(LastLogits(p, trace, ids.size()));
    if (float32_) KT_RETURN_IF_ERROR(Selections(p, trace));
    if (p == "short" && float32_) {
      KT_RETURN_IF_ERROR(Hidden(trace, ids.size()));
      KT_RETURN_IF_ERROR(Routing(trace));
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

  // got, want [rows, vocab]
  void AddLogits(const std::string& prompt, const std::string& name, std::span<const float> got,
                 std::span<const float> want, size_t vocab) {
    Difference all = Compare(got, want);
    if (float32_) return Add(name + " max", all.max, kFp32Bound);
    Bf16Noise noise = golden_.noise(prompt);
    Add(name + " mean", all.mean, std::max(kBf16MeanFloor, 3 * noise.mean_abs));
    const double bound = std::max(kBf16MaxFloor, 3 * noise.max_abs);
    double max = 0;
    size_t beyond = 0, count = want.size() / vocab;
    for (size_t r = 0; r < count; ++r) {
      double row_max = Compare(got.subspan(r * vocab, vocab), want.subspan(r * vocab, vocab)).max;
      if (row_max > bound) {
        ++beyond;
      } else {
        max = std::max(max, row_max);
      }
    }
    rows.push_back(
        {name + " max", max, bound,
         static_cast<double>(beyond) <= kBf16FlippedShareMax * static_cast<double>(count),
         beyond == 0 ? ""
                     : fmt::format("without {} of {} positions up to {:.2f}: routed otherwise",
                                   beyond, count, all.max)});
  }

  absl::Status LastLogits(const std::string& p, const Trace& trace, size_t tokens) {
    const GoldenTensor& want = *golden_.Find(p + ".logits");
    size_t rows_wanted = static_cast<size_t>(want.shape[0]),
           vocab = static_cast<size_t>(want.shape[1]);
    if (trace.logits.size() != tokens * vocab || tokens < rows_wanted) {
      return Internal("selftest: {} logits for {} tokens of a vocabulary of {}",
                      trace.logits.size(), tokens, vocab);
    }
    std::span<const float> last(trace.logits.data() + (tokens - rows_wanted) * vocab,
                                rows_wanted * vocab);
    AddLogits(p, p + " logits", last, want.values, vocab);
    return absl::OkStatus();
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
      Add(name, Compare(trace.hidden[i], want->values).max, kFp32Bound);
    }
    return absl::OkStatus();
  }

  absl::Status Routing(const Trace& trace) {
    for (int layer : golden_.routed_layers()) {
      std::string prefix = "short.routing." + std::to_string(layer);
      auto it = trace.routing.find(layer);
      const GoldenTensor* ids = golden_.Find(prefix + ".expert_ids");
      const GoldenTensor* weights = golden_.Find(prefix + ".weights");
      const GoldenTensor* logits = golden_.Find(prefix + ".router_logits");
      if (it == trace.routing.end() || weights == nullptr || logits == nullptr ||
          ids->shape.size() != 2 || it->second.ids.size() != ids->ints.size() ||
          it->second.weights.size() != weights->values.size() ||
          it->second.logits.size() != logits->values.size()) {
        return Internal("selftest: layer {} was not captured as the golden file has it", layer);
      }
      size_t k = static_cast<size_t>(ids->shape[1]);
      int wrong = 0;
      for (size_t t = 0; t < ids->ints.size(); t += k) {
        std::set<int32_t> got(it->second.ids.begin() + static_cast<long>(t),
                              it->second.ids.begin() + static_cast<long>(t + k));
        std::set<int32_t> want(ids->ints.begin() + static_cast<long>(t),
                               ids->ints.begin() + static_cast<long>(t + k));
        wrong += got != want;
      }
      Add(prefix + ".expert_ids", wrong, 0, "tokens with other experts");
      Add(prefix + ".weights", Compare(it->second.weights, weights->values).max, kFp32WeightBound);
      Add(prefix + ".router_logits", Compare(it->second.logits, logits->values).max, kFp32Bound);
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
         fmt::format("first {} of {} tokens equal; margin there {:.3f}, noise allows {:.3f}", same,
                     want.size(), margin, allowed)});
  }

  // The golden continuation as a prompt: the logits from which each of its tokens was chosen.
  absl::Status TeacherForced(const std::string& p, const std::vector<int32_t>& ids,
                             const std::vector<int32_t>& greedy) {
    const GoldenTensor* want = golden_.Find(p + ".greedy_logits");
    if (want == nullptr) return absl::OkStatus();
    proto::TraceRequest request;
    request.mutable_token_ids()->Add(ids.begin(), ids.end());
    request.mutable_token_ids()->Add(greedy.begin(), greedy.end() - 1);
    request.mutable_capture()->set_logits(true);
    KT_ASSIGN_OR_RETURN(Trace trace, client_.Run(request));
    size_t vocab = want->values.size() / greedy.size(), first = (ids.size() - 1) * vocab;
    if (trace.logits.size() != first + want->values.size()) {
      return Internal("selftest: {} logits for the continuation of {}, expected {}",
                      trace.logits.size(), p, first + want->values.size());
    }
    AddLogits(p, p + " continuation logits", std::span(trace.logits).subspan(first), want->values,
              vocab);
    return absl::OkStatus();
  }

  const Golden& golden_;
  const bool float32_;
  TraceClient& client_;
};

}  // namespace

absl::StatusOr<std::vector<CheckRow>> RunGoldenChecks(const Golden& golden, bool float32,
                                                      TraceClient& client) {
  Checker checker(golden, float32, client);
  for (const std::string& prompt : golden.prompts()) KT_RETURN_IF_ERROR(checker.Prompt(prompt));
  return std::move(checker.rows);
}

}  // namespace kt
