// SPDX-License-Identifier: Apache-2.0
#include "coordinator/template/messages.h"

#include <utility>

#include "common/base/status.h"

namespace kt {
namespace {

absl::StatusOr<Json> JoinParts(const Json& parts, const std::string& where) {
  std::string joined;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string part_where = fmt::format("{}[{}]", where, i);
    std::string text;
    if (parts[i].is_string()) {
      text = parts[i].get<std::string>();
    } else {
      KT_ASSIGN_OR_RETURN(auto type, JsonString(parts[i], "type", part_where));
      KT_ASSIGN_OR_RETURN(auto part_text, JsonString(parts[i], "text", part_where));
      if (type != "text" || !part_text) {
        return InvalidArgument(
            "{}: only parts {{\"type\": \"text\", \"text\": ...}} are supported, got {}",
            part_where, JsonExcerpt(parts[i]));
      }
      text = *std::move(part_text);
    }
    if (i > 0) joined += "\n";
    joined += text;
  }
  return Json(std::move(joined));
}

absl::Status NormalizeToolCalls(Json* calls, ToolArguments form, const std::string& where) {
  if (!calls->is_array())
    return InvalidArgument("{} must be a list, got {}", where, JsonExcerpt(*calls));
  for (size_t i = 0; i < calls->size(); ++i) {
    Json& call = (*calls)[i];
    std::string call_where = fmt::format("{}[{}].function", where, i);
    if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) {
      return InvalidArgument("{} must be an object, got {}", call_where, JsonExcerpt(call));
    }
    Json& arguments = call["function"]["arguments"];
    if (form == ToolArguments::kText) {
      if (!arguments.is_string()) arguments = arguments.is_null() ? "{}" : DumpJson(arguments);
      continue;
    }
    if (arguments.is_null() || arguments == "") arguments = Json::object();
    if (arguments.is_string()) {
      auto parsed = ParseJson(arguments.get_ref<const std::string&>());
      if (!parsed.ok()) return Annotate(parsed.status(), call_where + ".arguments");
      arguments = *std::move(parsed);
    }
    if (!arguments.is_object())
      return InvalidArgument("{}.arguments must be a JSON object, got {}", call_where,
                             JsonExcerpt(arguments));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> NormalizeMessages(Json messages, ToolArguments arguments) {
  if (!messages.is_array())
    return InvalidArgument("messages must be a list, got {}", JsonExcerpt(messages));
  for (size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    std::string where = fmt::format("messages[{}]", i);
    if (!message.is_object())
      return InvalidArgument("{} must be an object, got {}", where, JsonExcerpt(message));
    Json& content = message["content"];
    if (content.is_array()) {
      KT_ASSIGN_OR_RETURN(content, JoinParts(content, where + ".content"));
    } else if (!content.is_string() && !content.is_null()) {
      return InvalidArgument("{}.content must be text or a list of text parts, got {}", where,
                             JsonExcerpt(content));
    }
    auto calls = message.find("tool_calls");
    if (calls == message.end()) continue;
    if (calls->is_null() || calls->empty()) {
      message.erase("tool_calls");
    } else {
      KT_RETURN_IF_ERROR(NormalizeToolCalls(&*calls, arguments, where + ".tool_calls"));
    }
  }
  return messages;
}

ToolArguments DetectToolArguments(PromptRenderer* renderer) {
  auto render = [&](const Json& arguments) {
    Json call = {{"id", "call_0"},
                 {"type", "function"},
                 {"function", {{"name", "f"}, {"arguments", arguments}}}};
    return renderer->Render(
        {{"messages",
          {{{"role", "user"}, {"content", "x"}},
           {{"role", "assistant"}, {"content", ""}, {"tool_calls", Json::array({call})}}}},
         {"add_generation_prompt", false}});
  };
  // A template that prints an object it takes for text shows it in Python's notation.
  auto as_object = render({{"kt_probe", 1}});
  if (as_object.ok() && as_object->find("{'kt_probe'") == std::string::npos)
    return ToolArguments::kObject;
  return render(R"({"kt_probe": 1})").ok() ? ToolArguments::kText : ToolArguments::kObject;
}

}  // namespace kt
