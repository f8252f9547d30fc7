// SPDX-License-Identifier: Apache-2.0
// Takes little-endian numbers and pieces off the front of untrusted bytes.
#ifndef KT_COMMON_PLACEMENT_BYTE_READER_H_
#define KT_COMMON_PLACEMENT_BYTE_READER_H_

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace kt {

// The host is little-endian. After a read beyond the end all reads give zeros and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const uint8_t> bytes) : rest_(bytes) {}

  template <typename T>
  T Read() {
    T value{};
    std::span<const uint8_t> bytes = Take(sizeof(T));
    if (ok_) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  std::span<const uint8_t> Take(uint64_t count) {
    ok_ = ok_ && count <= rest_.size();
    if (!ok_) return {};
    std::span<const uint8_t> taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  std::string Text(uint64_t count) {
    std::span<const uint8_t> bytes = Take(count);
    return std::string(bytes.begin(), bytes.end());
  }
  bool ok() const { return ok_; }
  size_t left() const { return rest_.size(); }

 private:
  std::span<const uint8_t> rest_;
  bool ok_ = true;
};

}  // namespace kt

#endif  // KT_COMMON_PLACEMENT_BYTE_READER_H_
