// SPDX-License-Identifier: Apache-2.0
// A small blocking HTTP/1.1 client for the commands that talk to a running server. One connection
// per request.
//
// Threads  one thread per client
// Errors   Unavailable: no connection, or it broke; DeadlineExceeded; Cancelled: the interrupt
// descriptor became readable, the connection
//          has been closed and the server may stop working; DataLoss: the answer is not HTTP. An
//          error status of the server is no error here
#ifndef KT_CLI_HTTP_CLIENT_H_
#define KT_CLI_HTTP_CLIENT_H_

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kt::cli {

struct HttpResponse {
  int status = 0;
  std::string content_type;
  std::string body;
};

struct HttpClientOptions {
  std::string host = "127.0.0.1";  // name or address, IPv6 without brackets
  int port = 30000;
  std::string api_key;  // sent as a bearer token; empty: none
  int connect_timeout_ms = 5000;
  int interrupt_fd = -1;  // ends a request in flight as soon as it is readable; -1: none
};

class HttpClient {
 public:
  explicit HttpClient(HttpClientOptions options) : options_(std::move(options)) {}

  // timeout_ms bounds the whole exchange after the connection; below 0: no bound.
  absl::StatusOr<HttpResponse> Get(const std::string& path, int timeout_ms = 10000);
  absl::StatusOr<HttpResponse> Post(const std::string& path, const std::string& json,
                                    int timeout_ms = -1);

  // As Post, but hands out the body of a successful answer piece by piece as it arrives; the
  // returned body is then empty. `on_data` may return false to stop: the connection is closed, the
  // result is what has come so far.
  absl::StatusOr<HttpResponse> PostStreaming(const std::string& path, const std::string& json,
                                             const std::function<bool(std::string_view)>& on_data,
                                             int timeout_ms = -1);

  std::string address() const;  // "http://host:port"

 private:
  absl::StatusOr<HttpResponse> Exchange(std::string_view method, const std::string& path,
                                        const std::string& body,
                                        const std::function<bool(std::string_view)>& on_data,
                                        int timeout_ms);
  HttpClientOptions options_;
};

// Cuts a stream of server-sent events into the data of each event (several data lines are joined by
// line ends).
class SseParser {
 public:
  // Calls on_event for every event completed by `bytes`. ResourceExhausted: an event above 16 MiB.
  absl::Status Feed(std::string_view bytes,
                    const std::function<void(const std::string& data)>& on_event);

 private:
  std::string line_;
  std::string data_;
  bool has_data_ = false;
};

}  // namespace kt::cli

#endif  // KT_CLI_HTTP_CLIENT_H_
