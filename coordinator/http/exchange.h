// SPDX-License-Identifier: Apache-2.0
// One request and its answer on the wire.
#ifndef KT_COORDINATOR_HTTP_EXCHANGE_H_
#define KT_COORDINATOR_HTTP_EXCHANGE_H_

#include <memory>
#include <string>

#include "coordinator/http/session.h"

namespace kt::http {

struct ExchangeInfo {
  std::string path;
  std::string request_id;  // echoed
  int http_version = 11;
  bool head = false;  // HEAD: no body
  bool keep_alive = true;
};

// Everything but Post and PostAfter on the I/O thread. Outlives its session harmlessly.
class Exchange : public api::ReplyChannel, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::weak_ptr<Session> session, std::weak_ptr<boost::asio::io_context> io,
           ExchangeInfo info)
      : session_(std::move(session)), io_(std::move(io)), info_(std::move(info)) {}

  void Post(std::function<void()> task) override;
  void PostAfter(std::chrono::milliseconds delay, std::function<void()> task) override;
  void Send(int http_status, std::string content_type, std::string body) override;
  void Fail(const absl::Status& status) override;
  void StartEvents() override;
  void SendEvent(const std::string& data) override;
  void EndEvents() override;
  void OnClosed(std::function<void()> callback) override;

  // For Session.
  void OnSessionClosed();
  void Probe();  // something that a client which only stopped sending ignores
  bool keep_alive() const { return info_.keep_alive; }
  void set_keep_alive(bool keep_alive) { info_.keep_alive = keep_alive; }

 private:
  enum class State { kWaiting, kStreaming, kDone };

  // The session while the answer is in `state`, else null.
  std::shared_ptr<Session> SessionIn(State state) const {
    return state_ == state ? session_.lock() : nullptr;
  }
  std::string Head(int http_status, const std::string& content_type, const std::string& more) const;
  void WriteChunk(Session& session, const std::string& bytes);
  void Finish(Session& session);

  const std::weak_ptr<Session> session_;
  const std::weak_ptr<boost::asio::io_context> io_;
  ExchangeInfo info_;
  State state_ = State::kWaiting;
  bool closed_ = false;
  std::function<void()> on_closed_;
};

}  // namespace kt::http

#endif  // KT_COORDINATOR_HTTP_EXCHANGE_H_
