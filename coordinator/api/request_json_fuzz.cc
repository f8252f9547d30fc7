// SPDX-License-Identifier: Apache-2.0
// Any bytes as the body of either endpoint: an answer or a message, and what is accepted keeps its
// bounds.
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "coordinator/api/api_error.h"
#include "coordinator/api/request_parser.h"

namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

void Check(const absl::StatusOr<kt::api::ApiRequest>& request) {
  if (!request.ok()) {
    Require(request.status().code() == absl::StatusCode::kInvalidArgument &&
            !kt::Message(request.status()).empty());
    return;
  }
  const kt::GenerationRequest& g = request->generation;
  Require(g.n >= 1 && g.n <= kt::api::kChoicesMax && g.stop.size() <= kt::api::kStopStringsMax);
  Require(g.sampling.temperature >= 0 && g.sampling.temperature <= 2 && g.sampling.top_p > 0 &&
          g.sampling.top_p <= 1);
  Require(g.sampling.repetition_penalty > 0 && std::isfinite(g.sampling.presence_penalty) &&
          g.sampling.top_k >= 0);
  Require(!request->id.empty() && g.top_logprobs <= kt::api::kTopLogprobsMax);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const kt::api::ModelFacts facts = {.name = "m", .context_length = 100, .vocab_size = 300};
  Check(kt::api::ParseRequest(kt::api::Endpoint::kChat, body, facts, {}));
  Check(kt::api::ParseRequest(kt::api::Endpoint::kCompletion, body, facts, {}));
  return 0;
}
