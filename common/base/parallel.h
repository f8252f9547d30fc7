// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COMMON_BASE_PARALLEL_H_
#define KT_COMMON_BASE_PARALLEL_H_

#include <memory>
#include <type_traits>

namespace kt {

// A reference to a callable; owns nothing, so it must not outlive the expression that made it.
template <typename Signature>
class FunctionRef;
template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)
      FunctionRef(F&& f)  // NOLINT(google-explicit-constructor)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(args...);
        }) {}
  R operator()(Args... args) const { return call_(object_, args...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

// Runs independent tasks on a fixed set of threads. One caller at a time.
class Parallel {
 public:
  virtual ~Parallel() = default;
  virtual int threads() const = 0;
  // Calls f(task, thread) once for every task in [0, tasks); thread in [0, threads()) names the
  // caller's scratch. Returns when all are done. Which thread runs which task is not fixed, so
  // results may not depend on it.
  virtual void Run(int tasks, FunctionRef<void(int task, int thread)> f) = 0;
};

// The caller alone.
class Serial final : public Parallel {
 public:
  int threads() const override { return 1; }
  void Run(int tasks, FunctionRef<void(int, int)> f) override {
    for (int i = 0; i < tasks; ++i) f(i, 0);
  }
};

}  // namespace kt

#endif  // KT_COMMON_BASE_PARALLEL_H_
