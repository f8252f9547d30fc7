// SPDX-License-Identifier: Apache-2.0
// A TCP client that sends bytes as they are, for tests of the HTTP server.
#ifndef KT_COORDINATOR_HTTP_RAW_CLIENT_H_
#define KT_COORDINATOR_HTTP_RAW_CLIENT_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>

namespace kt::http {

struct RawResponse {
  int status = 0;
  std::string head;  // lower and upper case as sent
  std::string body;  // chunks joined
  std::string Header(const std::string& name) const {
    const size_t at = head.find("\r\n" + name + ": ");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 4;
    return head.substr(begin, head.find("\r\n", begin) - begin);
  }
};

class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  // False once the server has closed.
  bool Send(const std::string& bytes) {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }
  void Post(const std::string& path, const std::string& body, const std::string& more = "") {
    Send("POST " + path + " HTTP/1.1\r\nhost: x\r\n" + more +
         "content-length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  void Get(const std::string& path, const std::string& more = "") {
    Send("GET " + path + " HTTP/1.1\r\nhost: x\r\n" + more + "\r\n");
  }

  // Reads until the buffer has `text`; false on the end of the stream or after 10 s.
  bool ReadUntil(const std::string& text) {
    while (in_.find(text) == std::string::npos) {
      if (!ReadSome()) return false;
    }
    return true;
  }
  // True when the server closes within 10 s.
  bool AtEnd() {
    while (ReadSome()) {
    }
    return ended_;
  }

  // The next whole response; status 0 when there is none. Interim responses (1xx) are skipped.
  RawResponse Read(bool has_body = true) {
    RawResponse response;
    do {
      if (!ReadUntil("\r\n\r\n")) return response;
      const size_t end = in_.find("\r\n\r\n");
      response.head = in_.substr(0, end + 2);
      in_.erase(0, end + 4);
      response.status = std::atoi(response.head.c_str() + 9);
    } while (response.status / 100 == 1);
    if (!has_body || response.status == 204) return response;
    if (response.Header("transfer-encoding") == "chunked") {
      for (size_t size = 1; size > 0;) {
        if (!ReadUntil("\r\n")) return {};
        size = std::strtoul(in_.c_str(), nullptr, 16);
        in_.erase(0, in_.find("\r\n") + 2);
        while (in_.size() < size + 2 && ReadSome()) {
        }
        response.body += in_.substr(0, size);
        in_.erase(0, size + 2);
      }
    } else if (std::string length = response.Header("content-length"); !length.empty()) {
      const size_t size = std::strtoul(length.c_str(), nullptr, 10);
      while (in_.size() < size && ReadSome()) {
      }
      response.body = in_.substr(0, size);
      in_.erase(0, size);
    } else {
      AtEnd();
      response.body.swap(in_);
    }
    return response;
  }

  // Whether there is something to read now.
  bool Poll() const {
    pollfd p = {fd_, POLLIN, 0};
    return poll(&p, 1, 0) == 1;
  }
  void HalfClose() { shutdown(fd_, SHUT_WR); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  void Reset() {
    const linger hard = {1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
    Close();
  }
  const std::string& buffer() const { return in_; }

 private:
  bool ReadSome() {
    pollfd p = {fd_, POLLIN, 0};
    if (poll(&p, 1, 10000) != 1) return false;
    char bytes[65536];
    const ssize_t n = recv(fd_, bytes, sizeof(bytes), 0);
    ended_ = n <= 0;
    if (n > 0) in_.append(bytes, static_cast<size_t>(n));
    return n > 0;
  }

  int fd_;
  bool ended_ = false;
  std::string in_;
};

}  // namespace kt::http

#endif  // KT_COORDINATOR_HTTP_RAW_CLIENT_H_
