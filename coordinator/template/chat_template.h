// SPDX-License-Identifier: Apache-2.0
// What a model directory says about chats: its template and the special tokens that the template
// uses.
#ifndef KT_COORDINATOR_TEMPLATE_CHAT_TEMPLATE_H_
#define KT_COORDINATOR_TEMPLATE_CHAT_TEMPLATE_H_

#include <string>

#include "absl/status/statusor.h"

namespace kt {

// The file `override_path` (--chat-template) if given, else chat_template.jinja, else chat_template
// of tokenizer_config.json (of several named ones, "default"). FailedPrecondition: the model has
// none.
absl::StatusOr<std::string> LoadChatTemplate(const std::string& model_dir,
                                             const std::string& override_path);

struct SpecialTokens {
  std::string bos_token;  // empty: none
  std::string eos_token;
};
// From tokenizer_config.json; empty where there is no such file.
absl::StatusOr<SpecialTokens> LoadSpecialTokens(const std::string& model_dir);

}  // namespace kt

#endif  // KT_COORDINATOR_TEMPLATE_CHAT_TEMPLATE_H_
