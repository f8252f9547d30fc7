// SPDX-License-Identifier: Apache-2.0
#include "coordinator/api/chat_messages.h"

#include <algorithm>
#include <array>

#include "coordinator/api/api_error.h"
#include "coordinator/api/request_fields.h"

namespace kt::api {
namespace {

constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                    "assistant", "tool",      "function"};

absl::StatusOr<std::string> ReadContent(const Json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return FieldError(where, "must be a string or a list of text parts, got {}",
                      DescribeValue(content));
  }
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string part_name = fmt::format("{}[{}]", where, i);
    const Json& part = content[i];
    if (!part.is_object())
      return FieldError(part_name, "must be an object, got {}", DescribeValue(part));
    auto type = part.find("type");
    if (type == part.end() || *type != "text") {
      return WithCode(
          FieldError(part_name + ".type",
                     "must be \"text\", the only kind of content this release serves, got {}",
                     type == part.end() ? "nothing" : DescribeValue(*type)),
          type == part.end() || !type->is_string() ? "" : kUnsupportedParameter);
    }
    auto part_text = part.find("text");
    if (part_text == part.end() || !part_text->is_string()) {
      return FieldError(part_name + ".text", "must be a string, got {}",
                        part_text == part.end() ? "nothing" : DescribeValue(*part_text));
    }
    text += part_text->get_ref<const std::string&>();
  }
  return text;
}

// Templates iterate over arguments as a mapping; OpenAI clients send them as JSON text.
absl::Status ParseCallArguments(Json& calls, const std::string& where) {
  if (!calls.is_array()) return FieldError(where, "must be a list, got {}", DescribeValue(calls));
  for (size_t i = 0; i < calls.size(); ++i) {
    Json& call = calls[i];
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) {
      return FieldError(fmt::format("{}[{}]", where, i),
                        "must be an object with a \"function\" object, got {}",
                        DescribeValue(call));
    }
    Json& function = call["function"];
    if (!function.contains("arguments") || !function["arguments"].is_string()) continue;
    auto arguments = ParseJson(function["arguments"].get_ref<const std::string&>());
    if (arguments.ok()) function["arguments"] = *std::move(arguments);
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> ReadMessage(const Json& message, const std::string& where) {
  if (!message.is_object())
    return FieldError(where, "must be an object with role and content, got {}",
                      DescribeValue(message));
  auto role = message.find("role");
  if (role == message.end() || !role->is_string() ||
      std::find(kRoles.begin(), kRoles.end(), role->get_ref<const std::string&>()) ==
          kRoles.end()) {
    return FieldError(where + ".role",
                      "must be system, developer, user, assistant, tool or function, got {}",
                      role == message.end() ? "nothing" : DescribeValue(*role));
  }
  Json out = message;
  if (*role == "developer") out["role"] = "system";
  bool has_calls = false;
  if (auto calls = out.find("tool_calls"); calls != out.end() && !calls->is_null()) {
    KT_RETURN_IF_ERROR(ParseCallArguments(*calls, where + ".tool_calls"));
    has_calls = !calls->empty();
  }
  auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    if (*role != "assistant" || !has_calls) {
      return FieldError(where + ".content", "must be a string or a list of text parts, got {}",
                        content == message.end() ? "nothing" : "null");
    }
    out["content"] = "";
  } else {
    KT_ASSIGN_OR_RETURN(std::string text, ReadContent(*content, where + ".content"));
    out["content"] = std::move(text);
  }
  return out;
}

}  // namespace

absl::StatusOr<Json> ReadChatMessages(const Json& messages) {
  if (!messages.is_array() || messages.empty()) {
    return FieldError("messages", "must be a list with at least one message, got {}",
                      DescribeValue(messages));
  }
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    KT_ASSIGN_OR_RETURN(Json message, ReadMessage(messages[i], fmt::format("messages[{}]", i)));
    out.push_back(std::move(message));
  }
  return out;
}

}  // namespace kt::api
