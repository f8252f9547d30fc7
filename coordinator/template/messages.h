// SPDX-License-Identifier: Apache-2.0
// Chat messages as clients send them, put into the form that chat templates expect.
#ifndef KT_COORDINATOR_TEMPLATE_MESSAGES_H_
#define KT_COORDINATOR_TEMPLATE_MESSAGES_H_

#include "absl/status/statusor.h"
#include "common/base/json.h"
#include "coordinator/template/prompt_renderer.h"

namespace kt {

// Clients send the arguments of a tool call as JSON text. Most templates walk them as an object,
// some concatenate the text.
enum class ToolArguments { kObject, kText };

// Finds out by rendering a made-up tool call; kObject for a template without tools.
ToolArguments DetectToolArguments(PromptRenderer* renderer);

// Content given as a list of text parts becomes one text (parts joined by line breaks), absent
// content null, arguments of tool calls as asked for; an empty tool_calls goes. Everything else
// stays. InvalidArgument names the place: "messages[2].content[0]".
absl::StatusOr<Json> NormalizeMessages(Json messages,
                                       ToolArguments arguments = ToolArguments::kObject);

}  // namespace kt

#endif  // KT_COORDINATOR_TEMPLATE_MESSAGES_H_
