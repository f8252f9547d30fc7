// SPDX-License-Identifier: Apache-2.0
#include "node/listen_socket.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "common/base/status.h"

namespace kt {
namespace {

constexpr int kBacklog = 1024;

absl::StatusOr<UniqueFd> BindAndListen(const addrinfo& address, const std::string& host, int port) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Internal("--host {}: socket: {}", host, strerror(errno));
  int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0 && listen(fd.get(), kBacklog) == 0)
    return fd;
  switch (errno) {
    case EADDRINUSE:
      return Unavailable("port {} of {} is in use: stop its user or choose another --port", port,
                         host);
    case EACCES:
      return Unavailable("port {} of {} is not permitted: choose a --port above 1023", port, host);
    case EADDRNOTAVAIL:
      return NotFound("--host {}: is not an address of this machine", host);
    default:
      return Internal("--host {} --port {}: cannot listen: {}", host, port, strerror(errno));
  }
}

absl::StatusOr<std::string> BoundAddress(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (getsockname(fd, generic, &size) != 0 ||
      getnameinfo(generic, size, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return Internal("listening socket: its address cannot be read");
  }
  if (address.ss_family == AF_INET6) return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host, port);
}

}  // namespace

absl::StatusOr<ListenSocket> OpenListenSocket(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      error != 0) {
    return NotFound("--host {}: {}", host, gai_strerror(error));
  }
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  absl::Status first_error;
  for (const addrinfo* address = list.get(); address != nullptr; address = address->ai_next) {
    absl::StatusOr<UniqueFd> fd = BindAndListen(*address, host, port);
    if (fd.ok()) {
      KT_ASSIGN_OR_RETURN(std::string bound, BoundAddress(fd->get()));
      return ListenSocket{std::move(*fd), std::move(bound)};
    }
    // A port that is taken on one address of a name is taken: clients would reach the other server.
    if (fd.status().code() == absl::StatusCode::kUnavailable) return fd.status();
    if (first_error.ok()) first_error = fd.status();
  }
  return first_error;
}

}  // namespace kt
