// SPDX-License-Identifier: Apache-2.0
#include "coordinator/template/make_renderer.h"

#include <utility>

#include "common/base/status.h"
#include "coordinator/template/chat_template.h"
#include "coordinator/template/deepseek_v32_prompt.h"
#include "coordinator/template/template_process.h"

namespace kt {

absl::StatusOr<std::unique_ptr<PromptRenderer>> MakePromptRenderer(const std::string& model_dir,
                                                                   const std::string& template_path,
                                                                   const std::string& model_type) {
  absl::StatusOr<std::string> text = LoadChatTemplate(model_dir, template_path);
  if (absl::IsFailedPrecondition(text.status()) && model_type == "deepseek_v32")
    return std::make_unique<DeepseekV32Prompt>();
  if (!text.ok()) return text.status();
  KT_ASSIGN_OR_RETURN(SpecialTokens special, LoadSpecialTokens(model_dir));
  return TemplateProcess::Create({.template_text = *std::move(text),
                                  .bos_token = special.bos_token,
                                  .eos_token = special.eos_token});
}

}  // namespace kt
