// SPDX-License-Identifier: Apache-2.0
// A block of CUDA threads on one CPU thread: each thread is a fibre that runs until it waits. What
// is undefined on a GPU is a fault here: barriers or shuffles that not all threads reach at the
// same place, shared memory that is read before it is written or used by two threads without a
// barrier between them, and accesses outside an allocation.
#ifndef KT_KERNELS_CUDA_SHIM_SIMT_H_
#define KT_KERNELS_CUDA_SHIM_SIMT_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <source_location>
#include <string>
#include <type_traits>

struct dim3 {
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  unsigned x, y, z;
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

void __syncthreads(std::source_location where = std::source_location::current());
void __syncwarp(unsigned mask = 0xffffffffu,
                std::source_location where = std::source_location::current());

namespace kt::shim {

constexpr int kWarpSize = 32;

struct KernelShape {
  const char* name;
  dim3 grid;
  int threads;  // of a block; one dimension
};

// Runs all blocks, one after the other. Returns what went wrong, empty if nothing did.
std::string RunKernel(const KernelShape& shape, const std::function<void()>& thread);

// Ends the kernel; called in a fibre. The message ends with the number where there is one.
[[noreturn]] void Fault(const char* what, int64_t number = -1);

// All lanes of the mask meet here; returns lane `source`'s bits.
uint64_t Shuffle(unsigned mask, uint64_t bits, int source, const std::source_location& where);
int Lane();

// The allocation that holds an address; empty (begin == end) for others. Defined with the runtime.
struct Extent {
  const char* begin;
  const char* end;
};
Extent FindAllocation(const void* address);

// A pointer into device memory that knows where its allocation ends.
template <typename T>
class GlobalPointer {
 public:
  GlobalPointer(T* p)
      : p_(p),
        extent_(FindAllocation(p)) {
  }  // NOLINT(google-explicit-constructor): as a raw pointer is passed to a kernel
  explicit operator bool() const { return p_ != nullptr; }
  GlobalPointer operator+(int64_t n) const {
    GlobalPointer moved = *this;
    moved.p_ += n;
    return moved;
  }
  T& operator[](int64_t i) const {
    const char* at = reinterpret_cast<const char*>(p_ + i);
    if (at < extent_.begin || at + sizeof(T) > extent_.end)
      Fault("access outside the buffer at element", i);
    return p_[i];
  }

 private:
  T* p_;
  Extent extent_;
};

// One element of shared memory and who touched it since when.
struct SharedCell {
  struct Access {
    int warp = -1, lane = -1;  // -1: several
    int block_epoch = -1, warp_epoch = -1;
  };
  uint64_t bits = 0;
  bool written = false;
  Access write, read;
};
SharedCell* SharedCells(
    int count);  // of the running thread's next array; the same for all threads of the block
void CheckRead(SharedCell& cell);
void CheckWrite(SharedCell& cell);

template <typename T, int kCount>
class SharedArray {
 public:
  class Element {
   public:
    explicit Element(SharedCell& cell) : cell_(cell) {}
    operator T() const {  // NOLINT(google-explicit-constructor): reads as T does
      CheckRead(cell_);
      T value;
      std::memcpy(&value, &cell_.bits, sizeof(T));
      return value;
    }
    Element& operator=(T value) {
      CheckWrite(cell_);
      std::memcpy(&cell_.bits, &value, sizeof(T));
      return *this;
    }

   private:
    SharedCell& cell_;
  };
  SharedArray() : cells_(SharedCells(kCount)) {}
  Element operator[](int64_t i) const {
    if (i < 0 || i >= kCount) Fault("access outside shared memory at element", i);
    return Element(cells_[i]);
  }

 private:
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  SharedCell* cells_;
};

template <typename T>
T ShuffleValue(unsigned mask, T value, int source, const std::source_location& where) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = Shuffle(mask, bits, source, where);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace kt::shim

template <typename T>
T __shfl_sync(unsigned mask, T value, int source,
              std::source_location where = std::source_location::current()) {
  return kt::shim::ShuffleValue(mask, value, source, where);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask,
                  std::source_location where = std::source_location::current()) {
  return kt::shim::ShuffleValue(mask, value, kt::shim::Lane() ^ lane_mask, where);
}

#endif  // KT_KERNELS_CUDA_SHIM_SIMT_H_
