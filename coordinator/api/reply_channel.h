// SPDX-License-Identifier: Apache-2.0
// Where the answer of one HTTP request goes. Implemented by coordinator/http; nothing here knows of
// sockets.
#ifndef KT_COORDINATOR_API_REPLY_CHANNEL_H_
#define KT_COORDINATOR_API_REPLY_CHANNEL_H_

#include <chrono>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace kt::api {

// Exactly one of Send, Fail and StartEvents…EndEvents (or Fail) answers a request. After the client
// has gone all of them do nothing.
class ReplyChannel {
 public:
  virtual ~ReplyChannel() = default;

  // Runs `task` on the channel's thread, in order. Thread-safe; returns at once; dropped once the
  // server is gone.
  virtual void Post(std::function<void()> task) = 0;
  virtual void PostAfter(std::chrono::milliseconds delay, std::function<void()> task) = 0;

  // The rest only on the channel's thread. None blocks.
  virtual void Send(int http_status, std::string content_type, std::string body) = 0;
  // OpenAI's error shape: the whole answer, or the last events of a stream that has begun.
  virtual void Fail(const absl::Status& status) = 0;
  // Server-sent events, flushed one by one.
  virtual void StartEvents() = 0;
  virtual void SendEvent(const std::string& data) = 0;
  virtual void EndEvents() = 0;
  // `callback` is called once, when the client has gone or read too slowly before the answer was
  // complete; at once if it already has.
  virtual void OnClosed(std::function<void()> callback) = 0;
};

}  // namespace kt::api

#endif  // KT_COORDINATOR_API_REPLY_CHANNEL_H_
