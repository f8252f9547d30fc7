// SPDX-License-Identifier: Apache-2.0
#include "common/ipc/node_client.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/base/status.h"
#include "common/ipc/fd_passing.h"

namespace kt {
namespace {

constexpr timeval kTimeout{10, 0};

int Allocate(int fd, size_t bytes) {
  int error;
  do {
    error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  } while (error == EINTR);
  return error;
}

}  // namespace

absl::StatusOr<NodeClient> NodeClient::Connect(const std::string& socket_path) {
  KT_ASSIGN_OR_RETURN(UniqueFd socket, ConnectToPath(socket_path));
  if (setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kTimeout, sizeof(kTimeout)) != 0) {
    return Internal("node socket: SO_RCVTIMEO: {}", strerror(errno));
  }
  return NodeClient(std::move(socket));
}

absl::StatusOr<NodeClient::Reply> NodeClient::Call(NodeOp op, const std::string& name, size_t bytes,
                                                   int fd) {
  NodeRequest request;
  if (name.size() >= kNodeNameBytes) {
    return InvalidArgument("node: name {} has {} bytes, at most {} are possible", name, name.size(),
                           kNodeNameBytes - 1);
  }
  request.op = static_cast<uint16_t>(op);
  request.bytes = bytes;
  std::memcpy(request.name, name.data(), name.size());
  KT_RETURN_IF_ERROR(
      SendPacket(socket_.get(), {reinterpret_cast<const char*>(&request), sizeof(request)}, fd));

  KT_ASSIGN_OR_RETURN(Packet packet,
                      ReceivePacket(socket_.get(), sizeof(NodeReply) + kNodeTextBytesMax));
  NodeReply reply;
  if (packet.data.size() < sizeof(reply))
    return Internal("node: a reply of {} bytes", packet.data.size());
  std::memcpy(&reply, packet.data.data(), sizeof(reply));
  if (reply.magic != kNodeMagic || reply.version != kNodeVersion ||
      reply.text_bytes != packet.data.size() - sizeof(reply)) {
    return Internal("node: a reply that is not of protocol version {}", kNodeVersion);
  }
  std::string text = packet.data.substr(sizeof(reply));
  if (reply.code != 0) return absl::Status(static_cast<absl::StatusCode>(reply.code), text);
  return Reply{reply.bytes, std::move(text), std::move(packet.fd)};
}

absl::StatusOr<Segment> NodeClient::GetSegment(const std::string& name, size_t bytes) {
  KT_ASSIGN_OR_RETURN(Reply reply, Call(NodeOp::kGetOrCreate, name, bytes));
  if (!reply.fd.valid()) return Internal("node: no descriptor for segment {}", name);
  if (int error = Allocate(reply.fd.get(), reply.bytes); error != 0) {
    (void)DropSegment(name);  // gives the pages back; what counts is the error below
    return ResourceExhausted("segment {}: no memory for {} bytes: {}", name, reply.bytes,
                             strerror(error));
  }
  return Segment::FromFd(reply.fd.Release(), reply.bytes);
}

absl::Status NodeClient::PutSegment(const std::string& name, const Segment& segment) {
  return Call(NodeOp::kPut, name, 0, segment.fd()).status();
}

absl::StatusOr<Segment> NodeClient::OpenSegment(const std::string& name) {
  KT_ASSIGN_OR_RETURN(Reply reply, Call(NodeOp::kOpen, name, 0));
  if (!reply.fd.valid()) return Internal("node: no descriptor for segment {}", name);
  return Segment::FromFd(reply.fd.Release(), reply.bytes, MapAccess::kRead);
}

absl::Status NodeClient::DropSegment(const std::string& name) {
  return Call(NodeOp::kDrop, name, 0).status();
}

absl::StatusOr<std::string> NodeClient::SegmentsJson() {
  KT_ASSIGN_OR_RETURN(Reply reply, Call(NodeOp::kList, "", 0));
  return reply.text;
}

absl::StatusOr<std::string> NodeClient::ProcessesJson() {
  KT_ASSIGN_OR_RETURN(Reply reply, Call(NodeOp::kProcesses, "", 0));
  return reply.text;
}

absl::Status NodeClient::KillProcess(const std::string& name) {
  return Call(NodeOp::kKill, name, 0).status();
}

}  // namespace kt
