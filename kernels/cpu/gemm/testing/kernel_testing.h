// SPDX-License-Identifier: Apache-2.0
// What kernel tests share: data, threads, and which table rows can run.
#ifndef KT_KERNELS_CPU_GEMM_TESTING_KERNEL_TESTING_H_
#define KT_KERNELS_CPU_GEMM_TESTING_KERNEL_TESTING_H_

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "common/base/bf16.h"
#include "common/base/parallel.h"
#include "kernels/cpu/features/cpu_features.h"

namespace kt {

// Whether this test program can run a row: its AVX-512 files may have been compiled with emulated
// intrinsics (tests/isa).
inline bool CanRun(Isa isa) {
#ifdef KT_EMULATED_AVX512
  return IsaSupported(isa == Isa::kAmx ? isa : Isa::kAvx2);
#else
  return IsaSupported(isa);
#endif
}

inline std::vector<bf16> RandomBf16(std::mt19937& rng, size_t count, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<bf16> values(count);
  for (bf16& value : values) value = ToBf16(normal(rng));
  return values;
}

// New threads for every Run, tasks taken in the order of arrival.
class Threads final : public Parallel {
 public:
  explicit Threads(int threads) : threads_(threads) {}
  int threads() const override { return threads_; }
  void Run(int tasks, FunctionRef<void(int, int)> f) override {
    std::atomic<int> next{0};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < threads_; ++thread) {
      threads.emplace_back([&, thread] {
        for (int task; (task = next.fetch_add(1)) < tasks;) f(task, thread);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  const int threads_;
};

}  // namespace kt

#endif  // KT_KERNELS_CPU_GEMM_TESTING_KERNEL_TESTING_H_
