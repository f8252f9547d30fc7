// SPDX-License-Identifier: Apache-2.0
// Packets over Unix sockets of type SOCK_SEQPACKET, each with at most one file descriptor attached
// (SCM_RIGHTS).
#ifndef KT_COMMON_IPC_FD_PASSING_H_
#define KT_COMMON_IPC_FD_PASSING_H_

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/ipc/unique_fd.h"

namespace kt {

struct Packet {
  std::string data;
  UniqueFd fd;  // close-on-exec
};

// A listening, non-blocking, close-on-exec socket at `path`, at most 103 bytes long; takes the
// place of what is there.
absl::StatusOr<UniqueFd> ListenAtPath(const std::string& path);
// A connected, blocking, close-on-exec socket. Unavailable: nobody listens there.
absl::StatusOr<UniqueFd> ConnectToPath(const std::string& path);
// User who opened the other end (SO_PEERCRED).
absl::StatusOr<uid_t> PeerUid(int socket);

// Sends one packet with `fd` attached unless it is -1; `fd` stays the caller's. Unavailable: peer
// gone or, on a non-blocking socket, not reading.
absl::Status SendPacket(int socket, std::string_view data, int fd = -1);
// Receives one packet. Unavailable: peer gone; DeadlineExceeded: receive time-out; InvalidArgument:
// more than bytes_max bytes or more than one descriptor (all are closed).
absl::StatusOr<Packet> ReceivePacket(int socket, size_t bytes_max);

}  // namespace kt

#endif  // KT_COMMON_IPC_FD_PASSING_H_
