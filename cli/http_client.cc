// SPDX-License-Identifier: Apache-2.0
#include "cli/http_client.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "common/base/status.h"
#include "common/ipc/unique_fd.h"

namespace kt::cli {
namespace {

namespace http = boost::beast::http;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kBodyBytesMax = uint64_t{256} << 20;  // of an answer that is kept whole
constexpr size_t kEventBytesMax = size_t{16} << 20;

class Deadline {
 public:
  explicit Deadline(int timeout_ms)
      : forever_(timeout_ms < 0), end_(Clock::now() + std::chrono::milliseconds(timeout_ms)) {}
  int LeftMs() const {
    if (forever_) return -1;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
    return static_cast<int>(std::max<int64_t>(left, 0));
  }

 private:
  bool forever_;
  Clock::time_point end_;
};

// One non-blocking connection whose every wait can be interrupted and is bounded.
class Connection {
 public:
  Connection(UniqueFd fd, int interrupt_fd) : fd_(std::move(fd)), interrupt_fd_(interrupt_fd) {}

  absl::Status Await(short events, const Deadline& deadline) const {
    for (;;) {
      pollfd wait[2] = {{fd_.get(), events, 0}, {interrupt_fd_, POLLIN, 0}};
      const int ready = poll(wait, 2, deadline.LeftMs());
      if (ready < 0 && errno != EINTR) return Unavailable("poll: {}", std::strerror(errno));
      if (ready < 0) continue;
      if (wait[1].revents != 0) return Cancelled("interrupted");
      if (wait[0].revents != 0) return absl::OkStatus();
      if (ready == 0) return DeadlineExceeded("no answer in time");
    }
  }

  absl::Status SendAll(std::string_view bytes, const Deadline& deadline) const {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent >= 0) {
        bytes.remove_prefix(static_cast<size_t>(sent));
      } else if (errno == EAGAIN) {
        KT_RETURN_IF_ERROR(Await(POLLOUT, deadline));
      } else if (errno == EPIPE || errno == ECONNRESET) {
        return absl::OkStatus();  // the server answered before it read everything: its answer says
                                  // why
      } else if (errno != EINTR) {
        return Unavailable("send: {}", std::strerror(errno));
      }
    }
    return absl::OkStatus();
  }

  // 0 bytes: the peer has closed.
  absl::StatusOr<size_t> Receive(char* data, size_t size, const Deadline& deadline) const {
    for (;;) {
      KT_RETURN_IF_ERROR(Await(POLLIN, deadline));
      const ssize_t received = recv(fd_.get(), data, size, 0);
      if (received >= 0) return static_cast<size_t>(received);
      if (errno != EAGAIN && errno != EINTR)
        return Unavailable("connection lost: {}", std::strerror(errno));
    }
  }

 private:
  UniqueFd fd_;
  int interrupt_fd_;
};

absl::StatusOr<Connection> ConnectTo(const addrinfo& address, const HttpClientOptions& options) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Unavailable("{}", std::strerror(errno));
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  const int raw = fd.get();
  Connection connection(std::move(fd), options.interrupt_fd);
  if (connect(raw, address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return Unavailable("{}", std::strerror(errno));
    KT_RETURN_IF_ERROR(connection.Await(POLLOUT, Deadline(options.connect_timeout_ms)));
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(raw, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return Unavailable("{}", std::strerror(error));
  }
  return connection;
}

absl::StatusOr<Connection> Connect(const HttpClientOptions& options) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (const int error =
          getaddrinfo(options.host.c_str(), std::to_string(options.port).c_str(), &hints, &list);
      error != 0) {
    return Unavailable("host '{}': {}", options.host, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(list, &freeaddrinfo);
  absl::Status last = Unavailable("host '{}' has no address", options.host);
  for (const addrinfo* a = list; a != nullptr; a = a->ai_next) {
    auto connection = ConnectTo(*a, options);
    if (connection.ok() || absl::IsCancelled(connection.status())) return connection;
    last = std::move(connection).status();
  }
  return last;
}

std::string HostField(const HttpClientOptions& options) {
  const bool ipv6 = options.host.find(':') != std::string::npos;
  return fmt::format("{}{}{}:{}", ipv6 ? "[" : "", options.host, ipv6 ? "]" : "", options.port);
}

bool IsHeaderSafe(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > ' ' && c < 127; });
}

}  // namespace

std::string HttpClient::address() const { return "http://" + HostField(options_); }

absl::StatusOr<HttpResponse> HttpClient::Get(const std::string& path, int timeout_ms) {
  return Exchange("GET", path, "", nullptr, timeout_ms);
}

absl::StatusOr<HttpResponse> HttpClient::Post(const std::string& path, const std::string& json,
                                              int timeout_ms) {
  return Exchange("POST", path, json, nullptr, timeout_ms);
}

absl::StatusOr<HttpResponse> HttpClient::PostStreaming(
    const std::string& path, const std::string& json,
    const std::function<bool(std::string_view)>& on_data, int timeout_ms) {
  return Exchange("POST", path, json, on_data, timeout_ms);
}

absl::StatusOr<HttpResponse> HttpClient::Exchange(
    std::string_view method, const std::string& path, const std::string& body,
    const std::function<bool(std::string_view)>& on_data, int timeout_ms) {
  if (!IsHeaderSafe(options_.host) || !IsHeaderSafe(options_.api_key)) {
    return InvalidArgument("host and API key: only printable ASCII without spaces can be sent");
  }
  auto connected = Connect(options_);
  if (!connected.ok()) return Annotate(connected.status(), address());
  const Connection& connection = *connected;
  const Deadline deadline(timeout_ms);

  std::string request = fmt::format(
      "{} {} HTTP/1.1\r\nHost: {}\r\nAccept: application/json, text/event-stream\r\nConnection: "
      "close\r\n",
      method, path, HostField(options_));
  if (!options_.api_key.empty())
    request += fmt::format("Authorization: Bearer {}\r\n", options_.api_key);
  if (method == "POST")
    request += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", body.size());
  request += "\r\n" + body;
  if (const absl::Status sent = connection.SendAll(request, deadline); !sent.ok())
    return Annotate(sent, address());

  http::response_parser<http::string_body> parser;
  parser.eager(true);
  if (on_data) {
    parser.body_limit(boost::none);
  } else {
    parser.body_limit(kBodyBytesMax);
  }
  HttpResponse response;
  std::string pending;
  while (!parser.is_done()) {
    char chunk[16384];
    const auto received = connection.Receive(chunk, sizeof(chunk), deadline);
    if (!received.ok()) return Annotate(received.status(), address());
    boost::system::error_code error;
    if (*received == 0) {
      parser.put_eof(error);
      if (error || !parser.is_done())
        return Unavailable("{}: connection closed before the answer was complete", address());
      break;
    }
    pending.append(chunk, *received);
    while (!pending.empty() && !parser.is_done()) {
      const size_t used = parser.put(boost::asio::buffer(pending), error);
      pending.erase(0, used);
      if (error == http::error::need_more || (!error && used == 0)) break;
      if (error) return DataLoss("{}: not a valid HTTP answer: {}", address(), error.message());
    }
    std::string& content = parser.get().body();
    if (on_data && parser.is_header_done() && parser.get().result_int() == 200 &&
        !content.empty()) {
      if (!on_data(content)) break;
      content.clear();
    }
  }
  response.status = static_cast<int>(parser.get().result_int());
  response.content_type = std::string(parser.get()[http::field::content_type]);
  response.body = std::move(parser.get().body());
  return response;
}

absl::Status SseParser::Feed(std::string_view bytes,
                             const std::function<void(const std::string&)>& on_event) {
  for (const char c : bytes) {
    if (c != '\n') {
      line_ += c;
      if (line_.size() + data_.size() > kEventBytesMax)
        return ResourceExhausted("event stream: an event is above {} bytes", kEventBytesMax);
      continue;
    }
    if (!line_.empty() && line_.back() == '\r') line_.pop_back();
    if (line_.empty()) {
      if (has_data_) on_event(data_);
      data_.clear();
      has_data_ = false;
    } else if (line_.starts_with("data:")) {
      if (has_data_) data_ += '\n';
      data_ += line_.substr(line_.starts_with("data: ") ? 6 : 5);
      has_data_ = true;
    }
    line_.clear();
  }
  return absl::OkStatus();
}

}  // namespace kt::cli
