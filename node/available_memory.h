// SPDX-License-Identifier: Apache-2.0
#ifndef KT_NODE_AVAILABLE_MEMORY_H_
#define KT_NODE_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>

namespace kt {

// Bytes that can be allocated without swapping or killing: MemAvailable of the machine, lowered to
// what the memory limits of this process's cgroups (v1 and v2, up to the root) leave. `root` is
// prefixed to /proc and /sys. Unreadable files count as no limit.
uint64_t AvailableMemoryBytes(const std::string& root = "");

// Of hugetlb pages that nobody has, which are no part of the above.
uint64_t FreeHugetlbBytes(const std::string& root = "");

}  // namespace kt

#endif  // KT_NODE_AVAILABLE_MEMORY_H_
