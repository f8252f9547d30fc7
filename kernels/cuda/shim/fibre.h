// SPDX-License-Identifier: Apache-2.0
#ifndef KT_KERNELS_CUDA_SHIM_FIBRE_H_
#define KT_KERNELS_CUDA_SHIM_FIBRE_H_

#include <functional>

#include "common/base/aligned_buffer.h"

namespace kt::shim {

// A function with a stack of its own that can stop in the middle. Owned and resumed by one thread.
// A fibre that has not finished may be started anew or destroyed: its stack is dropped without
// running destructors.
class Fibre {
 public:
  Fibre();
  ~Fibre();
  Fibre(const Fibre&) = delete;
  Fibre& operator=(const Fibre&) = delete;

  void Start(const std::function<void()>*
                 body);  // from the beginning at the next Resume; body outlives the run
  void Resume();         // runs until Suspend() or the end
  void Suspend();        // called inside: returns control to Resume
  bool done() const { return done_; }

 private:
  static void Main();
  void SwitchIn();
  void SwitchOut();

  AlignedBuffer stack_;
  const std::function<void()>* body_ = nullptr;
  void* inside_ = nullptr;  // stack pointers of the side that does not run
  void* outside_ = nullptr;
  bool done_ = true;
  // Sanitizers have to be told of every switch.
  void* inside_context_ = nullptr;
  void* outside_context_ = nullptr;
  const void* outside_stack_ = nullptr;
  size_t outside_stack_bytes_ = 0;
};

}  // namespace kt::shim

#endif  // KT_KERNELS_CUDA_SHIM_FIBRE_H_
