// SPDX-License-Identifier: Apache-2.0
#include "common/ipc/fd_passing.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "common/base/status.h"

namespace kt {
namespace {

constexpr int kBacklog = 64;
constexpr size_t kForeignFdsMax =
    16;  // descriptors of one packet that we receive only to close them

absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address{};
  if (path.empty() || path.size() >= sizeof(address.sun_path)) {
    return InvalidArgument("socket path {}: has {} bytes, 1 to {} are possible", path, path.size(),
                           sizeof(address.sun_path) - 1);
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

std::vector<UniqueFd> TakeDescriptors(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

absl::StatusOr<UniqueFd> ListenAtPath(const std::string& path) {
  // Moved into place when it listens already: whoever finds it and is refused knows that its owner
  // is dead.
  std::string unfinished = path + ".new";
  KT_ASSIGN_OR_RETURN(sockaddr_un address, UnixAddress(unfinished));
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Internal("socket {}: {}", path, strerror(errno));
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(fd.get(), kBacklog) != 0 || rename(unfinished.c_str(), path.c_str()) != 0) {
    return FailedPrecondition("socket {}: cannot be created: {}", path, strerror(errno));
  }
  return fd;
}

absl::StatusOr<UniqueFd> ConnectToPath(const std::string& path) {
  KT_ASSIGN_OR_RETURN(sockaddr_un address, UnixAddress(path));
  UniqueFd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return Internal("socket {}: {}", path, strerror(errno));
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    bool nobody = errno == ECONNREFUSED || errno == ENOENT;
    return MakeStatus(nobody ? absl::StatusCode::kUnavailable : absl::StatusCode::kInternal,
                      "socket {}: cannot connect: {}", path, strerror(errno));
  }
  return fd;
}

absl::StatusOr<uid_t> PeerUid(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return Internal("SO_PEERCRED: {}", strerror(errno));
  }
  return peer.uid;
}

absl::Status SendPacket(int socket, std::string_view data, int fd) {
  iovec part{const_cast<char*>(data.data()), data.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &fd, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return Unavailable("send of {} bytes: {}", data.size(), strerror(errno));
  return absl::OkStatus();
}

absl::StatusOr<Packet> ReceivePacket(int socket, size_t bytes_max) {
  Packet packet;
  packet.data.resize(bytes_max);
  iovec part{packet.data.data(), packet.data.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kForeignFdsMax * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received;
  do {
    received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0) {
    if (errno == EAGAIN) return DeadlineExceeded("receive: no packet in time");
    return Unavailable("receive: {}", strerror(errno));
  }
  std::vector<UniqueFd> fds = TakeDescriptors(message);
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || fds.size() > 1) {
    return InvalidArgument("receive: a packet of more than {} bytes or one descriptor", bytes_max);
  }
  if (received == 0) return Unavailable("receive: the other end has closed the connection");
  packet.data.resize(static_cast<size_t>(received));
  if (!fds.empty()) packet.fd = std::move(fds[0]);
  return packet;
}

}  // namespace kt
