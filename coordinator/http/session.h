// SPDX-License-Identifier: Apache-2.0
// One connection of HttpServer. Everything here runs on the I/O thread.
#ifndef KT_COORDINATOR_HTTP_SESSION_H_
#define KT_COORDINATOR_HTTP_SESSION_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "coordinator/http/http_server.h"

namespace kt::http {

class Session;
class Exchange;

// What the sessions of a server share.
struct SessionContext {
  HttpServerOptions options;
  HttpHandler* handler = nullptr;
  metrics::Metrics* metrics = nullptr;
  std::shared_ptr<boost::asio::io_context> io;
  std::set<std::shared_ptr<Session>> sessions;
  bool draining = false;
  std::function<void()> on_last_closed;  // while draining
  int64_t body_bytes = 0;                // received for requests that are not complete
};

// Reads one request after the other; exactly one is answered at a time, while the next may already
// lie in the buffer. A read is outstanding whenever there is room for one, so that a lost client is
// noticed in every state.
class Session : public std::enable_shared_from_this<Session> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  Session(SessionContext* context, Socket socket);

  void Start();
  // Answers with an error without reading anything, and closes.
  void Refuse(const absl::Status& status);
  // Closes when no request is being received or answered, else after the answer.
  void Drain();
  // Closes now; the exchange's client is told.
  void Close();

  // For Exchange.
  void Write(std::string bytes);
  void FinishExchange();
  int64_t unsent_bytes() const {
    return static_cast<int64_t>(out_.size() + writing_.size() - written_);
  }
  SessionContext& context() { return *context_; }

 private:
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  using ErrorCode = boost::system::error_code;

  void StartRead();
  void OnRead(ErrorCode error, size_t bytes);
  void WatchForReset();
  void Parse();
  void OnParseError(ErrorCode error);
  bool OnHeader();  // false: answered with an error
  void CountBody(int64_t bytes);
  void Dispatch();
  std::shared_ptr<Exchange> NewExchange();  // for the request of parser_
  void FailRequest(const absl::Status& status);
  void Continue();  // after an answer, or once output has drained: the next request, or the end
  void StartWrite();
  void OnWrite(ErrorCode error, size_t bytes);
  void Linger();
  void Probe();
  void Arm(boost::asio::steady_timer& timer, int timeout_ms, void (Session::*on_timeout)());
  static void Disarm(boost::asio::steady_timer& timer);
  void OnReadTimeout();

  SessionContext* const context_;
  Socket socket_;
  boost::asio::steady_timer read_timer_, write_timer_;

  boost::beast::flat_buffer in_;
  std::optional<Parser> parser_;  // of the request being received
  HttpRequest request_;           // its head
  int64_t counted_body_ = 0;      // its share of context_->body_bytes
  bool header_seen_ = false;
  bool reading_ = false;
  bool eof_ = false;  // the client sends no more

  std::shared_ptr<Exchange> exchange_;  // the request being answered
  std::string out_, writing_;           // not yet handed to the socket; being sent
  size_t written_ = 0;                  // of writing_
  bool close_after_write_ = false;
  bool lingering_ = false;  // all is said; what still arrives is dropped until the client closes
  bool closed_ = false;
};

}  // namespace kt::http

#endif  // KT_COORDINATOR_HTTP_SESSION_H_
