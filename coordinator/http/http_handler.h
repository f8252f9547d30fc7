// SPDX-License-Identifier: Apache-2.0
// The line between the socket side (server, session) and the endpoints (router).
#ifndef KT_COORDINATOR_HTTP_HTTP_HANDLER_H_
#define KT_COORDINATOR_HTTP_HTTP_HANDLER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "coordinator/api/reply_channel.h"

namespace kt::http {

struct HttpRequest {
  std::string method;  // "GET"; HEAD is handed over as GET, its body is left out of the answer
  std::string path;    // percent-decoded, without the query
  std::string query;   // raw, without '?'
  std::string authorization;  // the header's value, or empty
  std::string body;
};

// Both are called on the I/O thread and return at once.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Called with the header alone (no body yet). An error is the answer; the body is not read then.
  virtual absl::Status Admit(const HttpRequest& head) = 0;
  virtual void Handle(HttpRequest request, std::shared_ptr<api::ReplyChannel> reply) = 0;
  // Methods of a path for the Allow header ("GET, HEAD"); empty: no such path.
  virtual std::string Allow(const std::string& path) = 0;
};

}  // namespace kt::http

#endif  // KT_COORDINATOR_HTTP_HTTP_HANDLER_H_
