// SPDX-License-Identifier: Apache-2.0
// The "messages" of a chat request: checked, and put into the form that chat templates expect.
#ifndef KT_COORDINATOR_API_CHAT_MESSAGES_H_
#define KT_COORDINATOR_API_CHAT_MESSAGES_H_

#include "absl/status/statusor.h"
#include "common/base/json.h"

namespace kt::api {

// Roles: system, developer (rendered as system), user, assistant, tool, function. Content: a string
// or a list of text parts, which are joined; an assistant's may be absent beside tool_calls, whose
// argument strings become objects. InvalidArgument names the message, the field and the value.
absl::StatusOr<Json> ReadChatMessages(const Json& messages);

}  // namespace kt::api

#endif  // KT_COORDINATOR_API_CHAT_MESSAGES_H_
