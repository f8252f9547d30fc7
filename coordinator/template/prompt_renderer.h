// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_TEMPLATE_PROMPT_RENDERER_H_
#define KT_COORDINATOR_TEMPLATE_PROMPT_RENDERER_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/base/json.h"

namespace kt {

// Renders chat messages into prompt text. Blocking (bounded by its time limit), thread-safe.
class PromptRenderer {
 public:
  virtual ~PromptRenderer() = default;
  // `variables`: {"messages": [...], "tools": [...] or null, "add_generation_prompt": bool,
  // ...chat_template_kwargs}. InvalidArgument: the template raised or is broken (its message is
  // passed on); DeadlineExceeded: over the time limit; ResourceExhausted: over the memory limit;
  // FailedPrecondition: the model has no template; Unavailable: the helper cannot be started.
  virtual absl::StatusOr<std::string> Render(const Json& variables) = 0;
};

}  // namespace kt

#endif  // KT_COORDINATOR_TEMPLATE_PROMPT_RENDERER_H_
