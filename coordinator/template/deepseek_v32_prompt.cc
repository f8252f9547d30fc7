// SPDX-License-Identifier: Apache-2.0
#include "coordinator/template/deepseek_v32_prompt.h"

#include <utility>

#include "common/base/status.h"
#include "coordinator/template/messages.h"
#include "coordinator/template/python_json.h"

namespace kt {
namespace {

constexpr char kBegin[] = "<｜begin▁of▁sentence｜>";
constexpr char kEnd[] = "<｜end▁of▁sentence｜>";
constexpr char kUser[] = "<｜User｜>";
constexpr char kAssistant[] = "<｜Assistant｜>";
constexpr char kThinkBegin[] = "<think>";
constexpr char kThinkEnd[] = "</think>";

// The functions' schemas come between these two.
constexpr char kToolsHead[] =
    R"(## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<｜DSML｜function_calls>" block like the following as part of your reply to the user:
<｜DSML｜function_calls>
<｜DSML｜invoke name="$FUNCTION_NAME">
<｜DSML｜parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜parameter>
...
</｜DSML｜invoke>
<｜DSML｜invoke name="$FUNCTION_NAME2">
...
</｜DSML｜invoke>
</｜DSML｜function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:
<｜DSML｜function_calls>
...
</｜DSML｜function_calls>
<function_results>
...
</function_results>
<think>...thinking about results</think>
Here are the functions available in JSONSchema format:
<functions>
)";
constexpr char kToolsTail[] = "</functions>\n";
constexpr char kResponseFormat[] =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

// The value of a field, null where it is absent.
const Json& Field(const Json& object, const char* name) {
  static const Json& null = *new Json();
  auto it = object.is_object() ? object.find(name) : object.end();
  return it == object.end() ? null : *it;
}

bool Given(const Json& value) { return !value.is_null() && !value.empty(); }

absl::StatusOr<std::string> ToolsSection(const Json& tools, const std::string& where) {
  if (!tools.is_array())
    return InvalidArgument("{} must be a list, got {}", where, JsonExcerpt(tools));
  std::string text = kToolsHead;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& function = Field(tools[i], "function");
    if (!function.is_object())
      return InvalidArgument("{}[{}].function must be an object, got {}", where, i,
                             JsonExcerpt(tools[i]));
    text += PythonJson(function) + "\n";
  }
  return text + kToolsTail;
}

absl::StatusOr<std::string> Calls(const Json& calls, const std::string& where) {
  std::string text = "\n\n<｜DSML｜function_calls>\n";
  for (size_t i = 0; i < calls.size(); ++i) {
    const Json& function = calls[i]["function"];
    KT_ASSIGN_OR_RETURN(auto name,
                        JsonString(function, "name", fmt::format("{}[{}].function", where, i)));
    if (!name) return InvalidArgument("{}[{}].function.name is missing", where, i);
    text += fmt::format("<｜DSML｜invoke name=\"{}\">\n", *name);
    const char* separator = "";
    for (const auto& [key, value] : function["arguments"].items()) {
      text += fmt::format("{}<｜DSML｜parameter name=\"{}\" string=\"{}\">{}</｜DSML｜parameter>",
                          separator, key, value.is_string(),
                          value.is_string() ? value.get<std::string>() : PythonJson(value));
      separator = "\n";
    }
    text += "\n</｜DSML｜invoke>\n";
  }
  return text + "</｜DSML｜function_calls>";
}

class Encoder {
 public:
  Encoder(const Json& messages, bool thinking) : messages_(messages), thinking_(thinking) {
    for (size_t i = 0; i < messages.size(); ++i) {
      if (Field(messages[i], "role") == "user") after_last_user_ = i + 1;
    }
  }

  absl::StatusOr<std::string> Encode() {
    std::string text = kBegin;
    for (size_t i = 0; i < messages_.size(); ++i) {
      const std::string where = fmt::format("messages[{}]", i);
      KT_ASSIGN_OR_RETURN(std::string part, Message(i, where));
      text += part;
    }
    return text;
  }

 private:
  absl::StatusOr<std::string> Message(size_t i, const std::string& where) {
    const Json& message = messages_[i];
    const Json& role = Field(message, "role");
    if (role == "system") return System(message, where);
    if (role == "user") return kUser + Content(message) + kAssistant + Think(i + 1);
    if (role == "assistant") return Assistant(i, where);
    if (role == "tool") return Result(i, where);
    return InvalidArgument("{}.role must be system, user, assistant or tool, got {}", where,
                           JsonExcerpt(role));
  }

  static std::string Content(const Json& message) {
    const Json& content = Field(message, "content");
    return content.is_string() ? content.get<std::string>() : "";
  }

  // What opens the assistant's text before message `next`.
  const char* Think(size_t next) const {
    return thinking_ && next >= after_last_user_ ? kThinkBegin : kThinkEnd;
  }

  static absl::StatusOr<std::string> System(const Json& message, const std::string& where) {
    std::string text = Content(message);
    if (const Json& tools = Field(message, "tools"); Given(tools)) {
      KT_ASSIGN_OR_RETURN(std::string section, ToolsSection(tools, where + ".tools"));
      text += "\n\n" + section;
    }
    if (const Json& schema = Field(message, "response_format"); Given(schema))
      text += "\n\n" + (kResponseFormat + PythonJson(schema));
    return text;
  }

  absl::StatusOr<std::string> Assistant(size_t i, const std::string& where) {
    const Json& message = messages_[i];
    const Json& calls = Field(message, "tool_calls");
    open_results_ = calls.size();
    results_ = 0;
    std::string text;
    if (thinking_ && i >= after_last_user_) {
      KT_ASSIGN_OR_RETURN(auto reasoning, JsonString(message, "reasoning_content", where));
      if (!Given(calls) && reasoning.value_or("").empty()) {
        return InvalidArgument(
            "{}: with thinking on, an assistant's message behind the last user's needs "
            "reasoning_content or tool_calls",
            where);
      }
      text = reasoning.value_or("") + kThinkEnd;
    }
    text += Content(message);
    if (Given(calls)) {
      KT_ASSIGN_OR_RETURN(std::string block, Calls(calls, where + ".tool_calls"));
      text += block;
    }
    return text + kEnd;
  }

  absl::StatusOr<std::string> Result(size_t i, const std::string& where) {
    const bool follows = i > 0 && (Field(messages_[i - 1], "role") == "assistant" ||
                                   Field(messages_[i - 1], "role") == "tool");
    if (!follows || open_results_ == 0) {
      return InvalidArgument(
          "{}: a tool's message must follow an assistant's with tool_calls, one for each call",
          where);
    }
    std::string text = results_++ == 0 ? "\n\n<function_results>" : "";
    text += "\n<result>" + Content(messages_[i]) + "</result>";
    if (--open_results_ == 0) text += std::string("\n</function_results>\n\n") + Think(i + 1);
    return text;
  }

  const Json& messages_;
  const bool thinking_;
  size_t after_last_user_ = 0;  // index of the message behind the last user's
  size_t open_results_ = 0;     // calls of the last assistant's message without a result yet
  size_t results_ = 0;
};

}  // namespace

absl::StatusOr<std::string> DeepseekV32Prompt::Render(const Json& variables) {
  KT_ASSIGN_OR_RETURN(Json messages, NormalizeMessages(Field(variables, "messages")));
  KT_ASSIGN_OR_RETURN(auto thinking, JsonBool(variables, "thinking", "chat_template_kwargs"));
  for (const char* field : {"tools", "response_format"}) {
    const Json& value = Field(variables, field);
    if (!Given(value)) continue;
    if (messages.empty() || Field(messages[0], "role") != "system")
      messages.insert(messages.begin(), Json{{"role", "system"}, {"content", ""}});
    messages[0][field] = value;
  }
  return Encoder(messages, thinking.value_or(false)).Encode();
}

}  // namespace kt
