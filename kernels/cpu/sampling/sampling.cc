// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/sampling/sampling.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/cpu/sampling/counter_random.h"

namespace kt {
namespace {

constexpr float kOut = -std::numeric_limits<float>::infinity();

bool AllFinite(const float* values, int n) {
  bool finite = true;
  for (int i = 0; i < n; ++i)
    finite &= (std::bit_cast<uint32_t>(values[i]) & 0x7f800000u) != 0x7f800000u;
  return finite;
}

// A number that orders tokens as sampling prefers them: higher value first, of equal values the
// lower id.
uint64_t Key(float value, int32_t id) {
  const uint32_t bits = std::bit_cast<uint32_t>(value + 0.0f);  // -0 becomes +0
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | static_cast<uint32_t>(~id);
}
int32_t KeyId(uint64_t key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }

// Applies penalties, bias and suppression to `values`.
SampleStatus Adjust(const SamplingArgs& a, float* values) {
  const auto in_vocab = [&](int32_t id) { return id >= 0 && id < a.vocab; };
  for (const SamplingTokenCount& count : a.counts) {
    if (!in_vocab(count.token_id)) return SampleStatus::kBadToken;
    float& value = values[count.token_id];
    if (count.in_prompt || count.in_output > 0)
      value = value > 0 ? value / a.repetition_penalty : value * a.repetition_penalty;
    value -= a.frequency_penalty * static_cast<float>(count.in_output);
    if (count.in_output > 0) value -= a.presence_penalty;
    if (!std::isfinite(value)) return SampleStatus::kNotFinite;
  }
  for (const SamplingBias& bias : a.biases) {
    if (!in_vocab(bias.token_id)) return SampleStatus::kBadToken;
    values[bias.token_id] += bias.bias;
    if (!std::isfinite(values[bias.token_id])) return SampleStatus::kNotFinite;
  }
  for (int32_t id : a.suppressed_ids) {
    if (!in_vocab(id)) return SampleStatus::kBadToken;
    values[id] = kOut;
  }
  return SampleStatus::kOk;
}

class Sampler {
 public:
  Sampler(const SamplingArgs& args, float* values, uint64_t* keys)
      : a_(args),
        values_(values),
        keys_(keys),
        best_(static_cast<int32_t>(std::max_element(values, values + args.vocab) - values)),
        max_(values[best_]) {}

  SampleStatus Run(int32_t* token) {
    if (max_ == kOut) return SampleStatus::kNoCandidate;
    *token = best_;
    if (!(a_.temperature > 0)) return SampleStatus::kOk;
    if (a_.top_k > 0 && a_.top_k < a_.vocab) KeepTopK();
    if (a_.top_p < 1) KeepTopP();
    *token = Draw();
    return SampleStatus::kOk;
  }

 private:
  // Relative to the best token's, which is 1.
  float Weight(float value) const { return std::exp((value - max_) / a_.temperature); }
  bool Kept(int32_t id) const { return Key(values_[id], id) >= floor_; }

  void KeepTopK() {
    for (int32_t id = 0; id < a_.vocab; ++id) keys_[id] = Key(values_[id], id);
    uint64_t* last = keys_ + (a_.top_k - 1);
    std::nth_element(keys_, last, keys_ + a_.vocab, std::greater<>());
    floor_ = *last;
  }

  void KeepTopP() {
    double total = 0;
    int kept = 0;
    for (int32_t id = 0; id < a_.vocab; ++id) {
      if (!Kept(id)) continue;
      total += Weight(values_[id]);
      ++kept;
    }
    // Tokens below an equal share of the mass that may be left out cannot be needed; the rest is
    // sorted from the best on, in growing parts, until the mass is reached.
    const double mass = a_.top_p * total, share = (total - mass) / kept;
    uint64_t* end = keys_;
    for (int32_t id = 0; id < a_.vocab; ++id) {
      if (Kept(id) && (id == best_ || Weight(values_[id]) >= share)) *end++ = Key(values_[id], id);
    }
    double sum = 0;
    for (uint64_t *begin = keys_, *part_end = keys_; begin < end; begin = part_end) {
      part_end =
          begin + std::min<ptrdiff_t>(end - begin, std::max<ptrdiff_t>(64, 3 * (begin - keys_)));
      if (part_end < end) std::nth_element(begin, part_end, end, std::greater<>());
      std::sort(begin, part_end, std::greater<>());
      for (const uint64_t* key = begin; key < part_end; ++key) {
        floor_ = *key;
        sum += Weight(values_[KeyId(*key)]);
        if (sum >= mass) return;
      }
    }
  }

  // Walks the kept tokens in id order; replaces values_ by weights.
  int32_t Draw() {
    double total = 0;
    for (int32_t id = 0; id < a_.vocab; ++id) {
      float weight = Kept(id) ? Weight(values_[id]) : 0;
      if (weight < a_.min_p && id != best_) weight = 0;
      total += weight;
      values_[id] = weight;
    }
    const double target = UniformDraw(a_.seed, a_.choice, a_.position) * total;
    double sum = 0;
    int32_t last = best_;
    for (int32_t id = 0; id < a_.vocab; ++id) {
      if (values_[id] == 0) continue;
      last = id;
      sum += values_[id];
      if (sum > target) break;
    }
    return last;
  }

  const SamplingArgs& a_;
  float* const values_;
  uint64_t* const keys_;
  const int32_t best_;
  const float max_;
  uint64_t floor_ = 0;  // key of the last token that is kept
};

}  // namespace

size_t SampleScratchBytes(int vocab) noexcept {
  return size_t(vocab) * (sizeof(uint64_t) + sizeof(float));
}

SampleStatus Sample(const SamplingArgs& args, void* scratch, int32_t* token) noexcept {
  if (args.vocab <= 0) return SampleStatus::kNoCandidate;
  if (!AllFinite(args.logits, args.vocab)) return SampleStatus::kNotFinite;
  uint64_t* keys = static_cast<uint64_t*>(scratch);
  float* values = reinterpret_cast<float*>(keys + args.vocab);
  std::copy_n(args.logits, args.vocab, values);
  if (SampleStatus status = Adjust(args, values); status != SampleStatus::kOk) return status;
  return Sampler(args, values, keys).Run(token);
}

SampleStatus TokenLogprobs(const float* logits, int vocab, int32_t token, int top_n, float* logprob,
                           ScoredToken* top) noexcept {
  if (token < 0 || token >= vocab) return SampleStatus::kBadToken;
  if (!AllFinite(logits, vocab)) return SampleStatus::kNotFinite;
  const double max = *std::max_element(logits, logits + vocab);
  double sum = 0;
  for (int id = 0; id < vocab; ++id) sum += std::exp(logits[id] - max);
  const double log_total = max + std::log(sum);
  *logprob = static_cast<float>(logits[token] - log_total);
  const int wanted = std::min(top_n, vocab);
  int found = 0;
  for (int32_t id = 0; id < vocab && wanted > 0; ++id) {
    if (found == wanted && !(logits[id] > logits[top[found - 1].token_id])) continue;
    int place = found < wanted ? found++ : found - 1;
    for (; place > 0 && logits[id] > logits[top[place - 1].token_id]; --place)
      top[place] = top[place - 1];
    top[place].token_id = id;
  }
  for (int i = 0; i < found; ++i)
    top[i].logprob = static_cast<float>(logits[top[i].token_id] - log_total);
  return SampleStatus::kOk;
}

}  // namespace kt
