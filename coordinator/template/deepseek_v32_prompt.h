// SPDX-License-Identifier: Apache-2.0
// The prompt of DeepSeek-V3.2, which publishes rules in code instead of a chat template.
#ifndef KT_COORDINATOR_TEMPLATE_DEEPSEEK_V32_PROMPT_H_
#define KT_COORDINATOR_TEMPLATE_DEEPSEEK_V32_PROMPT_H_

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/template/prompt_renderer.h"

namespace kt {

// A prompt is the begin token and the messages one after the other:
//
//   system     its text, then the sections of its "tools" and "response_format" (a JSON schema),
//   each
//              after an empty line
//   user       <｜User｜> text <｜Assistant｜>, then <think> behind the last one when thinking is
//   on,
//              else </think>
//   assistant  [reasoning </think>] text [calls] end token; the reasoning when thinking is on and
//   no
//              user speaks later: that of earlier turns is dropped
//   tool       <result> in a <function_results> block, one for each call in their order; behind the
//              last, <think> or </think> as behind a user
//
// A call is an <｜DSML｜invoke> whose parameters say whether they are text (as it is) or JSON.
//
// Variables: messages; thinking (bool, off when absent); tools and response_format, which ride on
// the first system message (an empty one is put first where there is none). add_generation_prompt
// has no effect: the assistant's turn opens behind every user. Thread-safe.
class DeepseekV32Prompt final : public PromptRenderer {
 public:
  // InvalidArgument: a message that the rules have no form for, named with its place.
  absl::StatusOr<std::string> Render(const Json& variables) override;
};

}  // namespace kt

#endif  // KT_COORDINATOR_TEMPLATE_DEEPSEEK_V32_PROMPT_H_
