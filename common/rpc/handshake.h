// SPDX-License-Identifier: Apache-2.0
// Versions that two processes of one system must share; a mismatch is refused with both values.
#ifndef KT_COMMON_RPC_HANDSHAKE_H_
#define KT_COMMON_RPC_HANDSHAKE_H_

#include <cstdint>
#include <string>

namespace kt {

inline constexpr uint32_t kProtocolVersion = 1;      // of proto/*.proto between processes
inline constexpr uint32_t kPackedLayoutVersion = 1;  // of docs/formats/packed_expert.md

// Of the sources this program was built from.
std::string BuildId();

// Nanoseconds since the epoch: later starts of the same worker are higher.
uint64_t NewIncarnation();

}  // namespace kt

#endif  // KT_COMMON_RPC_HANDSHAKE_H_
