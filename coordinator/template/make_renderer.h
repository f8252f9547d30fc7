// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_TEMPLATE_MAKE_RENDERER_H_
#define KT_COORDINATOR_TEMPLATE_MAKE_RENDERER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/template/prompt_renderer.h"

namespace kt {

// How the model's prompts are built: by `template_path` (--chat-template) if given, else by the
// template in the directory, else by the published rules of its family (`model_type`).
// FailedPrecondition: there is none of the three.
absl::StatusOr<std::unique_ptr<PromptRenderer>> MakePromptRenderer(const std::string& model_dir,
                                                                   const std::string& template_path,
                                                                   const std::string& model_type);

}  // namespace kt

#endif  // KT_COORDINATOR_TEMPLATE_MAKE_RENDERER_H_
