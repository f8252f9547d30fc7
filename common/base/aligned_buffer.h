// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_BASE_ALIGNED_BUFFER_H_
#define KT_COMMON_BASE_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace kt {

// Zeroed private memory, aligned to a page, returned to the system when destroyed. Movable.
// Errors: aborts when the kernel has no memory; sizes come from validated plans.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  template <typename T>
  T* As() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace kt

#endif  // KT_COMMON_BASE_ALIGNED_BUFFER_H_
