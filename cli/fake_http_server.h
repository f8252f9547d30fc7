// SPDX-License-Identifier: Apache-2.0
// For tests: a server on a free loopback port whose answers are written byte for byte by the test.
#ifndef KT_CLI_FAKE_HTTP_SERVER_H_
#define KT_CLI_FAKE_HTTP_SERVER_H_

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "common/ipc/unique_fd.h"

namespace kt::cli {

// One open connection of the fake server.
class FakeConnection {
 public:
  FakeConnection(int fd, std::string request) : fd_(fd), request_(std::move(request)) {}
  const std::string& request() const { return request_; }  // head and body
  std::string body() const { return request_.substr(request_.find("\r\n\r\n") + 4); }

  void Send(std::string_view bytes) const { send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void SendJson(int status, std::string_view json) const {
    Send(fmt::format(
        "HTTP/1.1 {} X\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{}", status,
        json.size(), json));
  }
  void StartEvents() const {
    Send(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
  }
  void SendEvent(std::string_view data) const {
    const std::string event = fmt::format("data: {}\n\n", data);
    Send(fmt::format("{:x}\r\n{}\r\n", event.size(), event));
  }
  void EndEvents() const { Send("0\r\n\r\n"); }
  // Waits until the client has closed its side; false after ten seconds.
  bool ClientCloses() const {
    pollfd wait{fd_, POLLIN, 0};
    char byte;
    return poll(&wait, 1, 10000) > 0 && recv(fd_, &byte, 1, 0) <= 0;
  }

 private:
  int fd_;
  std::string request_;
};

class FakeHttpServer {
 public:
  // `handler` is called for one request after the other, on the server's thread; the connection is
  // closed when it returns.
  explicit FakeHttpServer(std::function<void(const FakeConnection&)> handler)
      : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), handler_(std::move(handler)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_.get(), 16), 0);
    EXPECT_EQ(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakeHttpServer() {
    shutdown(listener_.get(), SHUT_RDWR);  // ends accept
    thread_.join();
  }
  int port() const { return port_; }

 private:
  void Serve() {
    for (;;) {
      const UniqueFd connection(accept(listener_.get(), nullptr, nullptr));
      if (!connection.valid()) return;
      handler_(FakeConnection(connection.get(), ReadRequest(connection.get())));
    }
  }
  static std::string ReadRequest(int fd) {
    std::string request;
    char chunk[4096];
    for (;;) {
      const size_t head = request.find("\r\n\r\n");
      if (head != std::string::npos) {
        const size_t field = request.find("Content-Length: ");
        const size_t length = field < head ? std::stoul(request.substr(field + 16)) : 0;
        if (request.size() >= head + 4 + length) return request;
      }
      const ssize_t received = recv(fd, chunk, sizeof(chunk), 0);
      if (received <= 0) return request;
      request.append(chunk, static_cast<size_t>(received));
    }
  }

  UniqueFd listener_;
  int port_ = 0;
  std::function<void(const FakeConnection&)> handler_;
  std::thread thread_;
};

}  // namespace kt::cli

#endif  // KT_CLI_FAKE_HTTP_SERVER_H_
