// SPDX-License-Identifier: Apache-2.0
// Reads zip archives whose entries are stored, not compressed, as torch.save writes them.
#ifndef KT_COMMON_PLACEMENT_STORED_ZIP_H_
#define KT_COMMON_PLACEMENT_STORED_ZIP_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "absl/status/statusor.h"

namespace kt {

// Contents by name, views of `bytes`. Zip64 end records are read, zip64 sizes of entries (4 GiB and
// more) are not. InvalidArgument: not a zip archive, an entry outside of it, or a compressed one.
absl::StatusOr<std::map<std::string, std::span<const uint8_t>>> ReadStoredZip(
    std::span<const uint8_t> bytes);

}  // namespace kt

#endif  // KT_COMMON_PLACEMENT_STORED_ZIP_H_
