// SPDX-License-Identifier: Apache-2.0
#ifndef KT_NODE_LISTEN_SOCKET_H_
#define KT_NODE_LISTEN_SOCKET_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/ipc/unique_fd.h"

namespace kt {

struct ListenSocket {
  UniqueFd fd;          // listening, non-blocking, close-on-exec, SO_REUSEADDR
  std::string address;  // host:port as bound: "127.0.0.1:30000", "[::1]:30000"
};

// Listens on the first address of `host` (IPv4 or IPv6 literal, or a name) that can be bound; port
// 0: any free one. Unavailable: in use or not permitted; NotFound: not an address of this machine.
absl::StatusOr<ListenSocket> OpenListenSocket(const std::string& host, int port);

}  // namespace kt

#endif  // KT_NODE_LISTEN_SOCKET_H_
