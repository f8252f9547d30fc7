// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 server: one I/O thread, any number of connections, no blocking call.
//
// Per connection: keep-alive, pipelining (answers in order), chunked bodies, Expect: 100-continue,
// HEAD, HTTP/1.0. Limits on the number of connections, on header and body bytes, on the time a
// client may take to send either, to stay idle, or to accept output. A client that closes or resets
// is noticed while its request is computed: what it asked for is cancelled. One that only shuts
// down its sending side still gets its answer: it is told apart by a probe (an interim "100
// Continue", or an SSE comment) that a closed socket answers with a reset.
#ifndef KT_COORDINATOR_HTTP_HTTP_SERVER_H_
#define KT_COORDINATOR_HTTP_HTTP_SERVER_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/observe/metrics.h"
#include "coordinator/http/http_handler.h"

namespace kt::http {

struct HttpServerOptions {
  int listen_fd = -1;  // a listening TCP socket, owned from now on; -1: bind host and port
  std::string host = "127.0.0.1";
  int port = 0;                // 0: any free one
  int connections_max = 4096;  // above: 503 and closed
  int64_t header_bytes_max = 32 << 10;
  int64_t body_bytes_max = 32 << 20;
  int64_t all_bodies_bytes_max =
      256 << 20;  // of requests being received, all connections together; above: 503
  int64_t stream_buffer_bytes_max = 8 << 20;  // unsent events of a slow reader; above: closed
  int header_timeout_ms =
      10000;  // from the first byte of a request, or from the connection, to the end of its header
  int body_timeout_ms = 60000;   // to send the whole body
  int idle_timeout_ms = 75000;   // between two requests
  int write_timeout_ms = 60000;  // without any output accepted
};

class HttpServer {
 public:
  // Starts serving at once. `handler` and `metrics` outlive the server. AlreadyExists: the port is
  // in use. InvalidArgument: the address is none. The soft limit of open files is raised to fit
  // connections_max, as far as the hard one allows.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                           HttpHandler* handler,
                                                           metrics::Metrics* metrics);
  // Closes what is left, which cancels the calls of its clients, and joins the thread.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;

  // Stops accepting, closes idle connections, and waits until the others have their answers. True:
  // all had them in time. The rest is closed by the destructor. Not on the I/O thread.
  bool Drain(std::chrono::milliseconds timeout);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kt::http

#endif  // KT_COORDINATOR_HTTP_HTTP_SERVER_H_
