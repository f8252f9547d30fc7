// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/session.h"

#include <netinet/tcp.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>

#include "common/base/status.h"
#include "coordinator/api/api_error.h"
#include "coordinator/api/request.h"
#include "coordinator/http/exchange.h"

namespace kt::http {
namespace {

namespace net = boost::asio;
namespace http = boost::beast::http;
using tcp = net::ip::tcp;

constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kPipelinedBytesMax = 64 << 10;  // received ahead of the request being answered
constexpr int64_t kUnsentBytesMax =
    1 << 20;  // a further pipelined request waits until less is unsent
constexpr int kLingerMs = 5000;
constexpr int kProbeMs = 1000;
constexpr size_t kRequestIdBytesMax = 128;

std::string ToString(boost::string_view text) { return std::string(text.data(), text.size()); }

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const char lower = static_cast<char>(c | 0x20);
  return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

std::string PercentDecode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 &&
                        HexDigit(text[i + 2]) >= 0;
    out += escape ? static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2])) : text[i];
    if (escape) i += 2;
  }
  return out;
}

// Fills path and query from origin form ("/path?query") or absolute form ("http://host/path").
void SplitTarget(std::string_view target, HttpRequest* request) {
  if (auto scheme = target.find("://");
      scheme != std::string_view::npos && !target.starts_with('/')) {
    const size_t slash = target.find('/', scheme + 3);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  const size_t mark = target.find('?');
  request->path = PercentDecode(target.substr(0, mark));
  request->query = mark == std::string_view::npos ? "" : std::string(target.substr(mark + 1));
}

// The client's own id if it can be echoed in a header, else a new one.
std::string RequestId(const std::string& given) {
  const bool usable =
      !given.empty() && given.size() <= kRequestIdBytesMax &&
      std::all_of(given.begin(), given.end(), [](char c) { return c > ' ' && c < 127; });
  return usable ? given : api::NewId("req-");
}

}  // namespace

Session::Session(SessionContext* context, Socket socket)
    : context_(context),
      socket_(std::move(socket)),
      read_timer_(*context->io),
      write_timer_(*context->io) {}

void Session::Start() {
  context_->metrics->ConnectionOpened();
  ErrorCode ignored;  // all of these are improvements only
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.set_option(net::socket_base::keep_alive(true), ignored);
  socket_.set_option(net::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>(30), ignored);
  socket_.set_option(net::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPINTVL>(10), ignored);
  socket_.set_option(net::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPCNT>(3), ignored);
  Arm(read_timer_, context_->options.header_timeout_ms, &Session::OnReadTimeout);
  WatchForReset();
  StartRead();
}

void Session::Refuse(const absl::Status& status) {
  Start();
  FailRequest(status);
}

void Session::Drain() {
  if (exchange_ != nullptr) {
    exchange_->set_keep_alive(false);
  } else if (!parser_) {  // what is being received will be answered as the last one
    close_after_write_ = true;
    if (unsent_bytes() == 0) Close();
  }
}

void Session::Close() {
  if (std::exchange(closed_, true)) return;
  auto self = shared_from_this();
  ErrorCode ignored;
  socket_.close(ignored);
  Disarm(read_timer_);
  Disarm(write_timer_);
  CountBody(0);
  context_->metrics->ConnectionClosed();
  context_->sessions.erase(self);
  if (auto exchange = std::exchange(exchange_, nullptr)) exchange->OnSessionClosed();
  if (context_->draining && context_->sessions.empty()) context_->on_last_closed();
}

// A later call with the same timer replaces the former; its handler, should it be queued already,
// sees another expiry.
void Session::Arm(net::steady_timer& timer, int timeout_ms, void (Session::*on_timeout)()) {
  timer.expires_after(std::chrono::milliseconds(timeout_ms));
  timer.async_wait(
      [self = shared_from_this(), &timer, on_timeout, expiry = timer.expiry()](ErrorCode error) {
        if (!error && !self->closed_ && timer.expiry() == expiry) (self.get()->*on_timeout)();
      });
}

void Session::Disarm(net::steady_timer& timer) {
  timer.expires_at(net::steady_timer::time_point::max());
}

void Session::OnReadTimeout() {
  if (!parser_ || lingering_) return Close();  // idle, or lingered long enough
  FailRequest(api::WithCode(DeadlineExceeded("the request was not received within {} ms",
                                             header_seen_ ? context_->options.body_timeout_ms
                                                          : context_->options.header_timeout_ms),
                            api::kRequestTimeout));
}

// Completes on a reset (or hang-up), also while no read is outstanding.
void Session::WatchForReset() {
  socket_.async_wait(tcp::socket::wait_error, [self = shared_from_this()](ErrorCode error) {
    if (error != net::error::operation_aborted) self->Close();
  });
}

void Session::StartRead() {
  if (reading_ || eof_ || closed_) return;
  if (exchange_ != nullptr && in_.size() >= kPipelinedBytesMax)
    return;  // resumed when the answer is complete
  reading_ = true;
  socket_.async_read_some(
      in_.prepare(kReadBytes),
      [self = shared_from_this()](ErrorCode error, size_t bytes) { self->OnRead(error, bytes); });
}

void Session::OnRead(ErrorCode error, size_t bytes) {
  reading_ = false;
  if (closed_) return;
  if (error == net::error::eof) {
    eof_ = true;
    if (exchange_ != nullptr) return Probe();
    if (lingering_ || unsent_bytes() == 0) return Close();
    close_after_write_ = true;
    return;
  }
  if (error) return Close();
  in_.commit(bytes);
  if (lingering_ || close_after_write_) {
    in_.clear();
  } else if (exchange_ == nullptr) {
    Parse();
  }
  StartRead();
}

void Session::Parse() {
  if (in_.size() == 0) return;
  if (!parser_) {
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(context_->options.header_bytes_max));
    parser_->body_limit(static_cast<uint64_t>(context_->options.body_bytes_max));
    parser_->eager(true);
    header_seen_ = false;
    Arm(read_timer_, context_->options.header_timeout_ms, &Session::OnReadTimeout);
  }
  ErrorCode error;
  while (!error && !parser_->is_done() && in_.size() > 0)
    in_.consume(parser_->put(in_.data(), error));
  if (parser_->is_header_done() && !header_seen_ && !OnHeader()) return;
  if (error && error != http::error::need_more) return OnParseError(error);
  CountBody(static_cast<int64_t>(parser_->get().body().size()));
  if (context_->body_bytes > context_->options.all_bodies_bytes_max) {
    return FailRequest(api::WithCode(
        Unavailable("too many large requests are being received at once; try again later"),
        api::kOverloaded));
  }
  if (parser_->is_done()) Dispatch();
}

void Session::OnParseError(ErrorCode error) {
  if (error == http::error::body_limit) {
    return FailRequest(
        api::WithCode(InvalidArgument("the request body has more than the {} bytes allowed",
                                      context_->options.body_bytes_max),
                      api::kBodyTooLarge));
  }
  if (error == http::error::header_limit) {
    return FailRequest(
        api::WithCode(InvalidArgument("the request header has more than the {} bytes allowed",
                                      context_->options.header_bytes_max),
                      api::kHeaderTooLarge));
  }
  FailRequest(api::WithCode(InvalidArgument("the request is not valid HTTP: {}", error.message()),
                            api::kInvalidHttp));
}

bool Session::OnHeader() {
  header_seen_ = true;
  const auto& head = parser_->get();
  request_ = HttpRequest();
  request_.method = ToString(head.method_string());
  if (request_.method == "HEAD") request_.method = "GET";
  SplitTarget(ToString(head.target()), &request_);
  request_.authorization = ToString(head[http::field::authorization]);
  absl::Status status = context_->handler->Admit(request_);
  if (status.ok() && head.version() >= 11 && head.count(http::field::host) != 1) {
    status = api::WithCode(InvalidArgument("the request must have one Host header, got {}",
                                           head.count(http::field::host)),
                           api::kInvalidHttp);
  }
  if (!status.ok()) {
    FailRequest(status);
    return false;
  }
  Arm(read_timer_, context_->options.body_timeout_ms, &Session::OnReadTimeout);
  const auto length = parser_->content_length();
  const bool fits = !length || *length <= static_cast<uint64_t>(context_->options.body_bytes_max);
  if (fits && !parser_->is_done() && head.version() >= 11 &&
      boost::beast::iequals(head[http::field::expect], "100-continue")) {
    Write("HTTP/1.1 100 Continue\r\n\r\n");
  }
  return true;
}

void Session::CountBody(int64_t bytes) {
  context_->body_bytes += bytes - counted_body_;
  counted_body_ = bytes;
}

std::shared_ptr<Exchange> Session::NewExchange() {
  ExchangeInfo info;
  if (parser_ && parser_->is_header_done()) {
    const auto& head = parser_->get();
    info.path = request_.path;
    info.http_version = static_cast<int>(head.version());
    info.head = head.method() == http::verb::head;
    info.keep_alive = parser_->keep_alive() && !context_->draining && !close_after_write_;
    info.request_id = RequestId(ToString(head["x-request-id"]));
  } else {
    info.keep_alive = false;
    info.request_id = api::NewId("req-");
  }
  return std::make_shared<Exchange>(weak_from_this(), context_->io, std::move(info));
}

void Session::Dispatch() {
  Disarm(read_timer_);
  exchange_ = NewExchange();
  request_.body = std::move(parser_->get().body());
  CountBody(0);
  parser_.reset();
  auto exchange = exchange_;
  context_->handler->Handle(std::move(request_), exchange);
}

// Where the rest of the request is not read, the connection cannot go on.
void Session::FailRequest(const absl::Status& status) {
  exchange_ = NewExchange();
  if (!parser_ || !parser_->is_done()) exchange_->set_keep_alive(false);
  CountBody(0);
  parser_.reset();
  auto exchange = exchange_;
  exchange->Fail(status);
}

void Session::FinishExchange() {
  if (!exchange_->keep_alive()) close_after_write_ = true;
  exchange_.reset();
  if (!close_after_write_)
    Arm(read_timer_, context_->options.idle_timeout_ms, &Session::OnReadTimeout);
  // Posted: a handler that answers at once must not recurse through a pipeline of requests.
  net::post(*context_->io, [self = shared_from_this()] { self->Continue(); });
}

void Session::Continue() {
  if (closed_ || lingering_ || exchange_ != nullptr) return;
  if (unsent_bytes() > (close_after_write_ ? 0 : kUnsentBytesMax))
    return;  // OnWrite comes back here
  if (close_after_write_) return Linger();
  Parse();
  if (exchange_ == nullptr && eof_) {  // no complete request is left
    close_after_write_ = true;
    if (unsent_bytes() == 0) Close();
    return;
  }
  StartRead();
}

void Session::Write(std::string bytes) {
  if (closed_) return;
  out_ += bytes;
  if (writing_.empty()) StartWrite();
}

void Session::StartWrite() {
  if (writing_.empty()) writing_.swap(out_);
  Arm(write_timer_, context_->options.write_timeout_ms, &Session::Close);
  socket_.async_write_some(
      net::buffer(writing_.data() + written_, writing_.size() - written_),
      [self = shared_from_this()](ErrorCode error, size_t bytes) { self->OnWrite(error, bytes); });
}

void Session::OnWrite(ErrorCode error, size_t bytes) {
  if (closed_) return;
  if (error) return Close();
  written_ += bytes;
  if (written_ == writing_.size()) {
    writing_.clear();
    written_ = 0;
  }
  if (unsent_bytes() > 0) return StartWrite();
  Disarm(write_timer_);
  Continue();
}

void Session::Linger() {
  if (eof_) return Close();
  if (std::exchange(lingering_, true)) return;
  ErrorCode ignored;
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
  in_.clear();
  Arm(read_timer_, kLingerMs, &Session::OnReadTimeout);
  StartRead();
}

// On EOF while a request is answered: has the client closed, or only stopped sending? Asked again
// each second.
void Session::Probe() {
  if (exchange_ == nullptr) return;
  exchange_->Probe();
  Arm(read_timer_, kProbeMs, &Session::Probe);
}

}  // namespace kt::http
