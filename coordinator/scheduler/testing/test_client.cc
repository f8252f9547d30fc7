// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/testing/test_client.h"

#include "common/base/status.h"

namespace kt::testing {
namespace {

bool operator==(const TokenLogprob& a, const TokenLogprob& b) {
  return a.token_id == b.token_id && a.logprob == b.logprob && a.top == b.top;
}

template <typename T>
bool IsPrefix(const std::vector<T>& part, const std::vector<T>& whole) {
  if (part.size() > whole.size()) return false;
  for (size_t i = 0; i < part.size(); ++i) {
    if (!(part[i] == whole[i])) return false;
  }
  return true;
}

template <typename T>
void Append(std::vector<T>& to, std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

void TestClient::OnEvent(GenerationEvent event) {
  ++events;
  if (ended()) breach = "an event after the end";
  if (!event.error.ok()) {
    error = event.error;
    return;
  }
  if (event.cached_tokens < cached_tokens) breach = "fewer cached tokens than before";
  cached_tokens = event.cached_tokens;
  ReferenceOutput& out = outputs.at(event.choice);
  if (out.finish_reason != FinishReason::kNone) breach = "an event of a choice that has ended";
  if (!event.prompt_logprobs.empty() && (event.choice != 0 || !out.token_ids.empty())) {
    breach = "prompt logprobs not in the first event of choice 0";
  }
  Append(out.token_ids, event.token_ids);
  Append(out.logprobs, event.logprobs);
  Append(out.prompt_logprobs, event.prompt_logprobs);
  for (const auto& capture : event.captures) {
    out.captured_logits.insert(out.captured_logits.end(), capture->logits().begin(),
                               capture->logits().end());
  }
  out.text += event.text;
  out.finish_reason = event.finish_reason;
  out.matched_stop = event.matched_stop;
  out.matched_token = event.matched_token;
  if (event.finish_reason != FinishReason::kNone) ++finished;
}

std::string TestClient::Compare(const GenerationRequest& request, uint64_t seed) const {
  if (!breach.empty()) return breach;
  for (size_t choice = 0; choice < outputs.size(); ++choice) {
    const ReferenceOutput& got = outputs[choice];
    const ReferenceOutput want = RunAlone(request, seed, static_cast<int>(choice));
    const auto wrong = [&](const char* what) {
      return fmt::format("request {}, choice {}: {}", request.id, choice, what);
    };
    if (!IsPrefix(got.token_ids, want.token_ids)) return wrong("other tokens");
    if (!IsPrefix(got.logprobs, want.logprobs)) return wrong("other logprobs");
    if (got.logprobs.size() != (request.logprobs ? got.token_ids.size() : 0))
      return wrong("not a logprob for each token");
    if (!got.token_ids.empty() && got.prompt_logprobs.size() != want.prompt_logprobs.size())
      return wrong("missing prompt logprobs");
    if (!IsPrefix(got.prompt_logprobs, want.prompt_logprobs)) return wrong("other prompt logprobs");
    if (want.text.compare(0, got.text.size(), got.text) != 0) return wrong("other text");
    if (!IsPrefix(got.captured_logits, want.captured_logits)) return wrong("other captures");
    if (got.finish_reason == FinishReason::kNone) continue;
    if (got.token_ids.size() != want.token_ids.size() || got.text != want.text ||
        got.captured_logits.size() != want.captured_logits.size()) {
      return wrong("too short");
    }
    if (got.finish_reason != want.finish_reason || got.matched_stop != want.matched_stop ||
        got.matched_token != want.matched_token) {
      return wrong("another end");
    }
  }
  return "";
}

}  // namespace kt::testing
