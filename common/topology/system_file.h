// SPDX-License-Identifier: Apache-2.0
// Small text files of /proc and /sys. `root` in this folder's functions is put in front of every
// such path, so that a test can lay out another machine's files; the real system is the empty root.
#ifndef KT_COMMON_TOPOLOGY_SYSTEM_FILE_H_
#define KT_COMMON_TOPOLOGY_SYSTEM_FILE_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kt::topology {

// At most 1 MiB of the file. nullopt: cannot be opened or read.
std::optional<std::string> ReadSystemFile(const std::string& path);

// The word in brackets: "always [madvise] never"; empty: no such file, or none.
std::string ChosenSetting(const std::string& path);

std::vector<std::string> Split(std::string_view text, char separator);  // empty pieces are left out
std::string_view Trim(std::string_view text);  // spaces and line ends at both ends

}  // namespace kt::topology

#endif  // KT_COMMON_TOPOLOGY_SYSTEM_FILE_H_
