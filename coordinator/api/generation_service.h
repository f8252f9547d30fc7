// SPDX-License-Identifier: Apache-2.0
// Runs API calls, whatever carries them: parses, renders and tokenizes on its own threads, submits
// to the Generator, and hands events back on the carrier's thread.
#ifndef KT_COORDINATOR_API_GENERATION_SERVICE_H_
#define KT_COORDINATOR_API_GENERATION_SERVICE_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "common/observe/metrics.h"
#include "coordinator/api/request.h"
#include "coordinator/api/runtime_status.h"
#include "coordinator/generation/generation.h"
#include "coordinator/template/prompt_renderer.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace kt::api {

// The carrier's side of a call: an HTTP exchange or a gRPC stream.
class CallClient {
 public:
  virtual ~CallClient() = default;
  // Runs tasks one after the other on the carrier's thread. Thread-safe, returns at once; drops the
  // task once the carrier is gone.
  virtual void Post(std::function<void()> task) = 0;
  // The others are called through Post: OnPrepared at most once, events after it, OnEnd exactly
  // once and last. After GenerationCall::Cancel none is called any more.
  virtual void OnPrepared(std::shared_ptr<const PreparedCall> call) = 0;
  virtual void OnEvent(int prompt, GenerationEvent event) = 0;
  virtual void OnEnd(absl::Status status) = 0;
};

class GenerationService;

// A call in flight. Held by its client, which Cancel() or OnEnd() releases.
class GenerationCall {
 public:
  virtual ~GenerationCall() = default;
  // The client went away: the work ends within one step. Thread-safe, but not from a
  // GenerationSink. No effect after the end.
  virtual void Cancel() = 0;
};

class GenerationService {
 public:
  struct Options {
    int threads = 2;      // that parse, render and tokenize
    int queue_max = 256;  // jobs waiting for them; above: 503
  };

  // All pointers outlive the service. Front ends that post into it are stopped before it is
  // destroyed.
  GenerationService(ModelFacts facts, ApiDefaults defaults, const Tokenizer* tokenizer,
                    PromptRenderer* renderer, Generator* generator, const RuntimeStatus* status,
                    metrics::Metrics* metrics, const Options& options);
  ~GenerationService();
  GenerationService(const GenerationService&) = delete;
  GenerationService& operator=(const GenerationService&) = delete;

  // Starts a call; `parse` runs on a worker thread. Every failure arrives as OnEnd. Thread-safe.
  std::shared_ptr<GenerationCall> Start(std::function<absl::StatusOr<ApiRequest>()> parse,
                                        std::shared_ptr<CallClient> client);

  // Runs `job` on a worker thread. Unavailable (overloaded): the queue is full.
  absl::Status Run(std::function<void()> job);

  // Ends the call with this id, or all: choices that run finish with "abort". Thread-safe, but not
  // from a GenerationSink.
  absl::Status Abort(const std::string& id);  // NotFound
  void AbortAll();
  void FlushCache() { generator_->FlushCache(); }
  int live_calls() const;  // submitted or about to be

  const ModelFacts& facts() const { return facts_; }
  const ApiDefaults& defaults() const { return defaults_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  PromptRenderer& renderer() { return *renderer_; }
  const RuntimeStatus& status() const { return *status_; }
  metrics::Metrics& metrics() { return *metrics_; }
  size_t token_bytes_max() const { return token_bytes_max_; }

 private:
  class Call;
  class Sink;

  absl::Status Register(const std::string& id, std::shared_ptr<Call> call);
  void Unregister(const std::string& id);
  void WorkerLoop();

  // Constant after construction.
  const ModelFacts facts_;
  const ApiDefaults defaults_;
  const Tokenizer* const tokenizer_;
  PromptRenderer* const renderer_;
  Generator* const generator_;
  const RuntimeStatus* const status_;
  metrics::Metrics* const metrics_;
  const size_t token_bytes_max_;
  const int queue_max_;

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  std::map<std::string, std::shared_ptr<Call>> calls_;  // by id
  bool stopping_ = false;

  std::vector<std::thread> workers_;
};

}  // namespace kt::api

#endif  // KT_COORDINATOR_API_GENERATION_SERVICE_H_
