// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_TEMPLATE_TEMPLATE_PROCESS_H_
#define KT_COORDINATOR_TEMPLATE_TEMPLATE_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/template/prompt_renderer.h"

namespace kt {

struct TemplateOptions {
  std::string template_text;
  std::string bos_token;  // variables of the template; empty: not defined
  std::string eos_token;
  std::string helper_path;  // kt-template; empty: beside this program
  int time_limit_ms = 5000;
  int64_t memory_limit_bytes = int64_t{512} << 20;
};

// Renders in the helper process kt-template, one rendering at a time. A helper that overruns a
// limit or dies is killed and replaced at the next call; it dies with this process. Thread-safe; a
// caller waits at most the time limit for its turn.
class TemplateProcess : public PromptRenderer {
 public:
  // Starts the helper and compiles the template. Errors as Render(); InvalidArgument also for a
  // template that does not compile.
  static absl::StatusOr<std::unique_ptr<PromptRenderer>> Create(const TemplateOptions& options);
  ~TemplateProcess() override;

  absl::StatusOr<std::string> Render(const Json& variables) override;

 private:
  explicit TemplateProcess(const TemplateOptions& options) : options_(options) {}

  absl::StatusOr<std::string> RenderNow(const Json& variables);
  absl::Status Start();
  // Sends one frame and waits for its answer. On any error but a "-" answer the helper is gone
  // afterwards.
  absl::StatusOr<std::string> Exchange(const Json& request, absl::Duration limit);
  absl::Status Send(std::string_view data, absl::Time deadline);
  absl::StatusOr<std::string> Receive(size_t bytes, absl::Time deadline);
  absl::Status WaitForSocket(short events, absl::Time deadline);
  absl::Status HelperEnded();  // why, from its exit status
  bool HasEnded();
  int Stop();  // kills the helper if it runs; returns its wait status

  const TemplateOptions options_;
  absl::Mutex mutex_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  // Owned by the caller who set busy_.
  pid_t pid_ = -1;
  int socket_ = -1;
};

}  // namespace kt

#endif  // KT_COORDINATOR_TEMPLATE_TEMPLATE_PROCESS_H_
