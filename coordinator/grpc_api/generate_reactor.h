// SPDX-License-Identifier: Apache-2.0
// One Generate call: events of the GenerationService → messages on the stream.
#ifndef KT_COORDINATOR_GRPC_API_GENERATE_REACTOR_H_
#define KT_COORDINATOR_GRPC_API_GENERATE_REACTOR_H_

#include <grpcpp/support/server_callback.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "coordinator/api/generation_service.h"
#include "proto/generation.pb.h"

namespace kt::grpc_api {

// absl → gRPC: the codes are the same numbers.
grpc::Status ToGrpc(const absl::Status& status);

// Tasks in order. Outlives its thread harmlessly: what is posted after Close() is dropped.
class EventQueue {
 public:
  void Post(std::function<void()> task);  // thread-safe
  void Close();
  void Run();  // until it is closed and empty

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool closed_ = false;                      // guarded by mutex_
};

// Owns the thread that runs a queue.
class EventThread {
 public:
  EventThread();
  ~EventThread();
  std::shared_ptr<EventQueue> queue() const { return queue_; }

 private:
  const std::shared_ptr<EventQueue> queue_ = std::make_shared<EventQueue>();
  std::thread thread_;
};

// gRPC's callbacks are posted to the event thread too, so all state belongs to that thread. Keeps
// itself alive until OnDone.
class GenerateReactor : public grpc::ServerWriteReactor<api::GenerateEvent>,
                        public api::CallClient,
                        public std::enable_shared_from_this<GenerateReactor> {
 public:
  GenerateReactor(api::GenerationService* service, std::shared_ptr<EventQueue> events,
                  int64_t buffer_bytes_max)
      : service_(service), events_(std::move(events)), buffer_bytes_max_(buffer_bytes_max) {}

  void Start(const api::GenerateRequest& request);

  void Post(std::function<void()> task) override { events_->Post(std::move(task)); }
  void OnPrepared(std::shared_ptr<const api::PreparedCall> call) override;
  void OnEvent(int prompt, GenerationEvent event) override;
  void OnEnd(absl::Status status) override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void Echo(int prompt, const GenerationEvent& event, api::GenerateEvent* out);
  void WriteNext();
  void End(grpc::Status status);

  api::GenerationService* const service_;
  const std::shared_ptr<EventQueue> events_;
  const int64_t buffer_bytes_max_;

  // On the event thread.
  std::shared_ptr<api::GenerationCall> call_;
  std::shared_ptr<const api::PreparedCall> prepared_;
  std::vector<bool> started_;  // by choice
  int num_finished_ = 0;
  int completion_tokens_ = 0;
  std::vector<int> cached_tokens_;         // by prompt
  std::deque<api::GenerateEvent> unsent_;  // the first is being written while writing_
  int64_t unsent_bytes_ = 0;
  bool writing_ = false;
  bool ended_ = false;  // no more events; Finish follows the last write
  bool finished_ = false;
  grpc::Status status_;

  std::shared_ptr<GenerateReactor> self_;  // until OnDone
};

}  // namespace kt::grpc_api

#endif  // KT_COORDINATOR_GRPC_API_GENERATE_REACTOR_H_
