// SPDX-License-Identifier: Apache-2.0
#include "coordinator/request_log.h"

#include <chrono>

#include "common/base/status.h"
#include "spdlog/spdlog.h"

namespace kt {
namespace {

class LoggingSink final : public GenerationSink {
 public:
  LoggingSink(std::string id, int choices, std::shared_ptr<GenerationSink> next)
      : id_(std::move(id)), open_(choices), next_(std::move(next)) {}

  void OnEvent(GenerationEvent event) override {
    tokens_ += event.token_ids.size();
    if (!event.error.ok()) {
      spdlog::info("request {} failed after {} tokens and {:.3f} s: {}", id_, tokens_, Seconds(),
                   Message(event.error));
    } else if (event.finish_reason != FinishReason::kNone && --open_ == 0) {
      spdlog::info("request {} finished: {} tokens in {:.3f} s", id_, tokens_, Seconds());
    }
    next_->OnEvent(std::move(event));
  }

 private:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

  const std::string id_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int open_;
  size_t tokens_ = 0;
  const std::shared_ptr<GenerationSink> next_;
};

}  // namespace

absl::Status RequestLog::Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  const std::string id = request.id;
  const size_t prompt_tokens = request.prompt_ids.size();
  const int n = request.n, max_new_tokens = request.max_new_tokens;
  absl::Status status =
      next_->Submit(std::move(request), std::make_shared<LoggingSink>(id, n, std::move(sink)));
  if (status.ok()) {
    spdlog::info("request {}: {} prompt tokens, {} choices of up to {} tokens", id, prompt_tokens,
                 n, max_new_tokens);
  } else {
    spdlog::info("request {} refused: {}", id, Message(status));
  }
  return status;
}

void RequestLog::Cancel(const std::string& request_id) {
  spdlog::info("request {} cancelled", request_id);
  next_->Cancel(request_id);
}

}  // namespace kt
