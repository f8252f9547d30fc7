// SPDX-License-Identifier: Apache-2.0
#include "node/node_service.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "common/base/json.h"
#include "common/base/status.h"

namespace kt {
namespace {

constexpr size_t kConnectionsMax = 256;

// InvalidArgument: not a request of this protocol.
absl::StatusOr<NodeRequest> ParseRequest(const std::string& data) {
  NodeRequest request;
  if (data.size() != sizeof(request)) return InvalidArgument("a packet of {} bytes", data.size());
  std::memcpy(&request, data.data(), sizeof(request));
  if (request.magic != kNodeMagic || request.version != kNodeVersion) {
    return InvalidArgument("magic {:#x}, version {}", request.magic, request.version);
  }
  if (request.name[kNodeNameBytes - 1] != '\0') return InvalidArgument("a name without end");
  return request;
}

std::string SegmentsJson(const SegmentStore& store) {
  Json segments = Json::array();
  for (const auto& [name, held] : store.held())
    segments.push_back({{"name", name}, {"bytes", held.bytes}});
  return DumpJson({{"segments", segments}});
}

}  // namespace

NodeService::NodeService(EventLoop* loop, SegmentStore* segments, Hooks hooks)
    : loop_(loop), segments_(segments), hooks_(std::move(hooks)) {}

NodeService::~NodeService() {
  for (const auto& [fd, connection] : connections_) loop_->Remove(fd);
  if (listener_.valid()) loop_->Remove(listener_.get());
}

absl::Status NodeService::Listen(const std::string& path) {
  KT_ASSIGN_OR_RETURN(listener_, ListenAtPath(path));
  loop_->Watch(listener_.get(), [this] { Accept(); });
  return absl::OkStatus();
}

void NodeService::Accept() {
  UniqueFd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection.valid()) return;
  absl::StatusOr<uid_t> uid = PeerUid(connection.get());
  if (!uid.ok() || *uid != getuid()) {
    spdlog::warn("node socket: a connection of another user is refused");
    return;
  }
  if (connections_.size() >= kConnectionsMax) {
    spdlog::warn("node socket: {} connections are open, one more is refused", connections_.size());
    return;
  }
  int fd = connection.get();
  connections_.emplace(fd, Connection{std::move(connection), {}});
  loop_->Watch(fd, [this, fd] { Serve(fd); });
}

void NodeService::Close(int connection) {
  for (const std::string& name : connections_.at(connection).given)
    segments_->Drop(name).IgnoreError();  // it may have been dropped by its name
  loop_->Remove(connection);
  connections_.erase(connection);
}

void NodeService::Serve(int connection) {
  absl::StatusOr<Packet> packet = ReceivePacket(connection, sizeof(NodeRequest));
  if (packet.status().code() == absl::StatusCode::kUnavailable) return Close(connection);
  absl::StatusOr<NodeRequest> request = packet.ok() ? ParseRequest(packet->data) : packet.status();
  if (!request.ok()) {
    spdlog::warn("node socket: not a request, connection closed: {}", Message(request.status()));
    return Close(connection);
  }
  Answer answer = Execute(*request, std::move(packet->fd), connections_.at(connection));
  if (!answer.status.ok()) answer.text = Message(answer.status);
  answer.text.resize(std::min(answer.text.size(), kNodeTextBytesMax));
  NodeReply reply;
  reply.code = static_cast<uint16_t>(answer.status.code());
  reply.bytes = answer.bytes;
  reply.text_bytes = answer.text.size();
  std::string data(reinterpret_cast<const char*>(&reply), sizeof(reply));
  if (!SendPacket(connection, data + answer.text, answer.fd).ok()) Close(connection);
}

NodeService::Answer NodeService::Execute(const NodeRequest& request, UniqueFd fd,
                                         Connection& connection) {
  std::string name = request.name;
  switch (static_cast<NodeOp>(request.op)) {
    case NodeOp::kGetOrCreate: {
      absl::StatusOr<const SegmentStore::Held*> held = segments_->GetOrCreate(name, request.bytes);
      if (!held.ok()) return {held.status()};
      return {absl::OkStatus(), (*held)->bytes, "", (*held)->fd.get()};
    }
    case NodeOp::kPut: {
      absl::Status status = segments_->Put(name, std::move(fd));
      if (status.ok()) connection.given.push_back(name);
      return {status};
    }
    case NodeOp::kOpen: {
      absl::StatusOr<const SegmentStore::Held*> held = segments_->Find(name);
      if (!held.ok()) return {held.status()};
      return {absl::OkStatus(), (*held)->bytes, "", (*held)->fd.get()};
    }
    case NodeOp::kDrop:
      return {segments_->Drop(name)};
    case NodeOp::kList:
      return {absl::OkStatus(), 0, SegmentsJson(*segments_)};
    case NodeOp::kProcesses:
      return {absl::OkStatus(), 0, hooks_.processes_json()};
    case NodeOp::kKill:
      return {hooks_.kill_process(name)};
  }
  return {InvalidArgument("node: operation {} is unknown", request.op)};
}

}  // namespace kt
