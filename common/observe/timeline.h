// SPDX-License-Identifier: Apache-2.0
// What a process did when, recorded while somebody asks for it (`kt trace`). A span costs a load of
// one flag otherwise.
//
//   timeline::Span span("attention", "layer", l);   // until the end of the scope
//
// Clock    CLOCK_MONOTONIC in ns, the same for all processes of a machine
// Threads  any
#ifndef KT_COMMON_OBSERVE_TIMELINE_H_
#define KT_COMMON_OBSERVE_TIMELINE_H_

#include <atomic>
#include <cstdint>
#include <vector>

namespace kt::timeline {

struct Event {
  const char* name;  // literals
  const char* key;   // of value; null: there is none
  int64_t value;
  int64_t begin_ns, end_ns;
  int thread;
};

struct Recording {
  std::vector<Event> events;  // in order of their ends
  uint64_t dropped = 0;       // beyond kEventsMax
};

inline constexpr size_t kEventsMax = 1 << 20;

bool Start();  // false: somebody records already
Recording Stop();

int64_t NowNs();
// What is no scope, e.g. because it ends on another thread. `thread` is set here.
void Add(Event event);

namespace internal {
extern std::atomic<bool> recording;
}

class Span {
 public:
  explicit Span(const char* name, const char* key = nullptr, int64_t value = 0)
      : name_(name), key_(key), value_(value) {
    if (internal::recording.load(std::memory_order_relaxed)) begin_ns_ = NowNs();
  }
  ~Span() {
    if (begin_ns_ != 0) Add({name_, key_, value_, begin_ns_, NowNs(), 0});
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  const char* const name_;
  const char* const key_;
  const int64_t value_;
  int64_t begin_ns_ = 0;  // 0: nobody recorded when it began
};

}  // namespace kt::timeline

#endif  // KT_COMMON_OBSERVE_TIMELINE_H_
