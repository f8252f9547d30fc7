// SPDX-License-Identifier: Apache-2.0
// What kt-node and its clients say over runtime_dir/node.sock (SOCK_SEQPACKET): one request packet,
// one reply packet, in turn, in host byte order, for both ends are on one machine. The node answers
// only its own user and closes the connection on anything else.
#ifndef KT_COMMON_IPC_NODE_PROTOCOL_H_
#define KT_COMMON_IPC_NODE_PROTOCOL_H_

#include <cstddef>
#include <cstdint>

namespace kt {

inline constexpr char kNodeSocketName[] = "node.sock";  // in the runtime directory
inline constexpr uint32_t kNodeMagic = 0x444e544b;      // "KTND"
inline constexpr uint16_t kNodeVersion = 1;
inline constexpr size_t kNodeNameBytes = 104;
inline constexpr size_t kNodeTextBytesMax = 60 << 10;

enum class NodeOp : uint16_t {
  kGetOrCreate = 1,  // name, bytes → descriptor of a size-sealed memfd of that many bytes (whole
                     // pages), perhaps not allocated yet
  kDrop = 2,         // name; the node forgets the segment, those who map it keep it
  kList = 3,         // → text: JSON {"segments": [{"name", "bytes"}]}
  kProcesses = 4,    // → text: JSON, see NodeClient::ProcessesJson
  kPut = 6,  // name, with the descriptor of a size-sealed memfd: held under the name, which must be
             // free, as long as this connection lasts
  kOpen = 7,  // name → descriptor; NotFound where there is none
  kKill = 5,  // name of a process; SIGKILL to its group, then it is restarted as after any death
};

struct NodeRequest {
  uint32_t magic = kNodeMagic;
  uint16_t version = kNodeVersion;
  uint16_t op = 0;
  uint64_t bytes = 0;
  char name[kNodeNameBytes] = {};  // zero-terminated; letters, digits, '.', '_', '-'
};
static_assert(sizeof(NodeRequest) == 16 + kNodeNameBytes);

struct NodeReply {
  uint32_t magic = kNodeMagic;
  uint16_t version = kNodeVersion;
  uint16_t code = 0;        // absl::StatusCode
  uint64_t bytes = 0;       // kGetOrCreate, kOpen: size of the segment
  uint64_t text_bytes = 0;  // that many follow: error message or JSON
};
static_assert(sizeof(NodeReply) == 24);

}  // namespace kt

#endif  // KT_COMMON_IPC_NODE_PROTOCOL_H_
