// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/handshake.h"

#include <ctime>

namespace kt {

std::string BuildId() { return KT_BUILD_ID; }

uint64_t NewIncarnation() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

}  // namespace kt
