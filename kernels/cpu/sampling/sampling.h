// SPDX-License-Identifier: Apache-2.0
// From the logits of one position to a token, and to log-probabilities. The definition is message
// Sampling in proto/step.proto. The same on every instruction set: only scalar code and the C
// library's exp.
#ifndef KT_KERNELS_CPU_SAMPLING_SAMPLING_H_
#define KT_KERNELS_CPU_SAMPLING_SAMPLING_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace kt {

struct SamplingTokenCount {
  int32_t token_id = 0;
  int32_t in_output = 0;
  bool in_prompt = false;
};
struct SamplingBias {
  int32_t token_id = 0;
  float bias = 0;
};

// Order of work: repetition, frequency and presence penalty, bias, suppression; temperature 0 takes
// the best token (ties: lower id); else probabilities at that temperature, then top-k, top-p (the
// fewest best tokens whose mass reaches top_p), min-p (at least min_p times the best one's
// probability). The best token always stays. The repetition penalty acts on tokens of prompt and
// output, the other two on those of the output. The draw depends on (seed, choice, position) and
// the distribution alone.
struct SamplingArgs {
  const float* logits = nullptr;  // [vocab]
  int vocab = 0;
  float temperature = 0;
  int top_k = 0;  // 0: all
  float top_p = 1;
  float min_p = 0;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 1;
  std::span<const SamplingTokenCount> counts;  // each id once
  std::span<const SamplingBias> biases;
  std::span<const int32_t> suppressed_ids;
  uint64_t seed = 0;
  uint32_t choice = 0;
  uint32_t position = 0;
};

enum class SampleStatus {
  kOk,
  kNotFinite,    // a logit is NaN or infinite, or became so by a penalty or bias
  kNoCandidate,  // every token is suppressed
  kBadToken,     // an id outside [0, vocab)
};

// Scratch: SampleScratchBytes(vocab), aligned to 8 bytes. Time: O(vocab), plus a sort of the tokens
// that top-p keeps.
size_t SampleScratchBytes(int vocab) noexcept;
SampleStatus Sample(const SamplingArgs& args, void* scratch, int32_t* token) noexcept;

// Log-probabilities of the model's own distribution (log-softmax of the raw logits, summed in
// double in id order): of `token`, and of the top_n best tokens (descending, ties: lower id) into
// top [min(top_n, vocab)].
struct ScoredToken {
  int32_t token_id = 0;
  float logprob = 0;
};
SampleStatus TokenLogprobs(const float* logits, int vocab, int32_t token, int top_n, float* logprob,
                           ScoredToken* top) noexcept;

}  // namespace kt

#endif  // KT_KERNELS_CPU_SAMPLING_SAMPLING_H_
