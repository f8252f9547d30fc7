// SPDX-License-Identifier: Apache-2.0
#include "coordinator/http/exchange.h"

#include <boost/asio/post.hpp>
#include <boost/beast/http/status.hpp>
#include <ctime>

#include "common/base/status.h"
#include "coordinator/http/openai_error.h"

namespace kt::http {
namespace {

namespace net = boost::asio;

std::string HttpDate() {
  const std::time_t now = std::time(nullptr);
  std::tm tm{};
  gmtime_r(&now, &tm);
  char text[40];
  return std::string(text, std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &tm));
}

std::string Reason(int http_status) {
  if (http_status == 499) return "Client Closed Request";
  auto reason =
      boost::beast::http::obsolete_reason(static_cast<boost::beast::http::status>(http_status));
  return std::string(reason.data(), reason.size());
}

}  // namespace

void Exchange::Post(std::function<void()> task) {
  if (auto io = io_.lock()) net::post(*io, std::move(task));
}

void Exchange::PostAfter(std::chrono::milliseconds delay, std::function<void()> task) {
  auto io = io_.lock();
  if (io == nullptr) return;
  auto timer = std::make_shared<net::steady_timer>(*io, delay);
  timer->async_wait([timer, task = std::move(task)](boost::system::error_code error) {
    if (!error) task();
  });
}

std::string Exchange::Head(int http_status, const std::string& content_type,
                           const std::string& more) const {
  std::string head = fmt::format(
      "HTTP/1.1 {} {}\r\ndate: {}\r\nx-request-id: {}\r\nconnection: {}\r\n", http_status,
      Reason(http_status), HttpDate(), info_.request_id, info_.keep_alive ? "keep-alive" : "close");
  if (!content_type.empty()) head += fmt::format("content-type: {}\r\n", content_type);
  return head + more + "\r\n";
}

void Exchange::Send(int http_status, std::string content_type, std::string body) {
  auto session = SessionIn(State::kWaiting);
  if (session == nullptr) return;
  std::string more;
  if (http_status == 204)
    more = fmt::format("allow: {}\r\n", session->context().handler->Allow(info_.path));
  else
    more = fmt::format("content-length: {}\r\n", body.size());
  if (http_status == 503)
    more +=
        fmt::format("retry-after: {}\r\n", FindErrorRow(absl::UnavailableError("")).retry_after_s);
  session->Write(Head(http_status, content_type, more) + (info_.head ? "" : body));
  Finish(*session);
}

void Exchange::Fail(const absl::Status& status) {
  if (state_ == State::kStreaming) {
    SendEvent(ErrorBody(status));
    SendEvent("[DONE]");
    return EndEvents();
  }
  auto session = SessionIn(State::kWaiting);
  if (session == nullptr) return;
  const ErrorRow& row = FindErrorRow(status);
  const std::string body = ErrorBody(status);
  std::string more = fmt::format("content-length: {}\r\n", body.size());
  if (row.retry_after_s > 0) more += fmt::format("retry-after: {}\r\n", row.retry_after_s);
  if (row.http_status == 401) more += "www-authenticate: Bearer\r\n";
  if (row.http_status == 405)
    more += fmt::format("allow: {}\r\n", session->context().handler->Allow(info_.path));
  session->Write(Head(row.http_status, "application/json", more) + (info_.head ? "" : body));
  Finish(*session);
}

void Exchange::StartEvents() {
  auto session = SessionIn(State::kWaiting);
  if (session == nullptr) return;
  state_ = State::kStreaming;
  std::string more = "cache-control: no-cache\r\nx-accel-buffering: no\r\n";
  if (info_.http_version >= 11)
    more += "transfer-encoding: chunked\r\n";
  else
    info_.keep_alive = false;  // the end of the connection ends the body
  session->Write(Head(200, "text/event-stream; charset=utf-8", more));
}

void Exchange::WriteChunk(Session& session, const std::string& bytes) {
  session.Write(info_.http_version >= 11 ? fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes)
                                         : bytes);
}

void Exchange::SendEvent(const std::string& data) {
  auto session = SessionIn(State::kStreaming);
  if (session == nullptr) return;
  WriteChunk(*session, fmt::format("data: {}\n\n", data));
  if (session->unsent_bytes() > session->context().options.stream_buffer_bytes_max)
    session->Close();
}

void Exchange::EndEvents() {
  auto session = SessionIn(State::kStreaming);
  if (session == nullptr) return;
  if (info_.http_version >= 11) session->Write("0\r\n\r\n");
  Finish(*session);
}

void Exchange::OnClosed(std::function<void()> callback) {
  if (closed_) return callback();
  if (state_ != State::kDone) on_closed_ = std::move(callback);
}

void Exchange::OnSessionClosed() {
  closed_ = true;
  if (state_ == State::kDone) return;
  state_ = State::kDone;
  if (auto callback = std::exchange(on_closed_, nullptr)) callback();
}

void Exchange::Probe() {
  auto session = session_.lock();
  if (session == nullptr) return;
  if (state_ == State::kStreaming) WriteChunk(*session, ":\n\n");
  if (state_ == State::kWaiting && info_.http_version >= 11)
    session->Write("HTTP/1.1 100 Continue\r\n\r\n");
}

void Exchange::Finish(Session& session) {
  state_ = State::kDone;
  on_closed_ = nullptr;
  session.FinishExchange();
}

}  // namespace kt::http
