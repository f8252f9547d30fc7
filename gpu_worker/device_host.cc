// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/device_host.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "common/base/status.h"
#include "common/ipc/pages.h"

namespace kt {
namespace {

size_t PhysicalBytes() {
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
}

using Clock = std::chrono::steady_clock;

// One direction of a bus: every byte takes its time on it, asleep.
class Bus {
 public:
  explicit Bus(double gbps) : gbps_(gbps) {}

  void Copy(const CopyRows& copy, bool crosses) {
    for (size_t row = 0; row < copy.rows; ++row) {
      auto* target = static_cast<uint8_t*>(copy.target) + row * copy.target_stride;
      const auto* source = static_cast<const uint8_t*>(copy.source) + row * copy.source_stride;
      for (size_t at = 0; at < copy.bytes; at += kPiece) {
        const size_t bytes = std::min(kPiece, copy.bytes - at);
        const Clock::time_point start = Clock::now();
        std::memcpy(target + at, source + at, bytes);
        if (crosses && gbps_ > 0) Charge(start, bytes);
      }
    }
  }
  // All that was copied has arrived.
  void Settle() const { std::this_thread::sleep_until(free_at_); }

 private:
  static constexpr size_t kPiece = size_t{1} << 20;
  // What may be owed: the kernel cannot sleep for as short as small copies take.
  static constexpr std::chrono::microseconds kDebtMax{200};

  void Charge(Clock::time_point start, size_t bytes) {
    free_at_ = std::max(free_at_, start) +
               std::chrono::nanoseconds(static_cast<int64_t>(static_cast<double>(bytes) / gbps_));
    if (free_at_ - Clock::now() > kDebtMax) Settle();
  }

  const double gbps_;
  Clock::time_point free_at_{};
};

// Recorded so many times, of which so many have happened.
struct Event {
  uint64_t recorded = 0, done = 0;
  Clock::time_point when{};
};

// Events of a device. Thread-safe.
class Events {
 public:
  EventId Create() {
    std::lock_guard lock(mutex_);
    events_.emplace_back();
    return EventId{static_cast<int>(events_.size()) - 1};
  }
  uint64_t Record(EventId id) {
    std::lock_guard lock(mutex_);
    return ++At(id).recorded;
  }
  void Happen(EventId id, uint64_t record) {
    std::lock_guard lock(mutex_);
    At(id).done = record;
    At(id).when = Clock::now();
    changed_.notify_all();
  }
  uint64_t recorded(EventId id) {
    std::lock_guard lock(mutex_);
    return At(id).recorded;
  }
  void Await(EventId id, uint64_t record) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return At(id).done >= record; });
  }
  double ElapsedMs(EventId from, EventId to) {
    std::lock_guard lock(mutex_);
    return std::chrono::duration<double, std::milli>(At(to).when - At(from).when).count();
  }

 private:
  Event& At(EventId id) { return events_[static_cast<size_t>(id.value)]; }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Event> events_;
};

// A stream beside the default one: a thread that does its tasks in order.
class Stream {
 public:
  enum class Kind { kCopy, kRecord, kWait };
  struct Task {
    Kind kind;
    CopyRows copy;
    bool crosses = false;
    EventId event;
    uint64_t record = 0;
  };

  Stream(Events* events, double gbps) : events_(events), bus_(gbps) {
    thread_ = std::thread([this] { Work(); });
    pthread_setname_np(thread_.native_handle(), "kt-copy");
  }
  // Finishes what was issued.
  ~Stream() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void Issue(const Task& task) {
    {
      std::lock_guard lock(mutex_);
      tasks_.push_back(task);
    }
    changed_.notify_all();
  }
  void Synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return tasks_.empty(); });
  }

 private:
  void Work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      const Task task = tasks_.front();
      lock.unlock();
      Do(task);
      lock.lock();
      tasks_.pop_front();
      if (tasks_.empty()) changed_.notify_all();
    }
  }
  void Do(const Task& task) {
    switch (task.kind) {
      case Kind::kCopy:
        return bus_.Copy(task.copy, task.crosses);
      case Kind::kRecord:
        bus_.Settle();
        return events_->Happen(task.event, task.record);
      case Kind::kWait:
        return events_->Await(task.event, task.record);
    }
  }

  Events* const events_;
  Bus bus_;  // thread_ only
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;  // the first one is being done
  bool stop_ = false;
  std::thread thread_;
};

class HostDevice final : public Device {
 public:
  HostDevice(size_t memory_bytes_max, double copy_gbps)
      : Device(memory_bytes_max != 0 ? memory_bytes_max : PhysicalBytes()),
        copy_gbps_(copy_gbps),
        bus_(copy_gbps) {}

  std::string name() const override { return "host"; }

  // On this device host memory is device memory; it counts as used all the same.
  absl::StatusOr<DeviceBuffer> AllocateHost(size_t bytes, const std::string& what) override {
    return Allocate(bytes, what);
  }

  absl::StatusOr<StreamId> CreateStream() override {
    streams_.push_back(std::make_unique<Stream>(&events_, copy_gbps_));
    return StreamId{static_cast<int>(streams_.size())};
  }
  absl::StatusOr<EventId> CreateEvent() override { return events_.Create(); }

  absl::Status Record(EventId event, StreamId stream) override {
    const uint64_t record = events_.Record(event);
    if (stream.value == 0) {
      events_.Happen(event, record);
    } else {
      At(stream).Issue({.kind = Stream::Kind::kRecord, .event = event, .record = record});
    }
    return absl::OkStatus();
  }

  absl::Status Wait(StreamId stream, EventId event) override {
    const uint64_t record = events_.recorded(event);
    if (stream.value == 0) {
      events_.Await(event, record);
    } else {
      At(stream).Issue({.kind = Stream::Kind::kWait, .event = event, .record = record});
    }
    return absl::OkStatus();
  }

  absl::Status Synchronize(StreamId stream) override {
    if (stream.value != 0) At(stream).Synchronize();
    return absl::OkStatus();
  }

  absl::Status CopyAsync(void* target, const void* source, size_t bytes, CopyKind kind,
                         StreamId stream) override {
    return CopyRowsAsync({.target = target, .source = source, .bytes = bytes}, kind, stream);
  }

  absl::Status CopyRowsAsync(const CopyRows& copy, CopyKind kind, StreamId stream) override {
    const bool crosses = kind != CopyKind::kDeviceToDevice;
    if (stream.value == 0) {
      bus_.Copy(copy, crosses);
    } else {
      At(stream).Issue({.kind = Stream::Kind::kCopy, .copy = copy, .crosses = crosses});
    }
    return absl::OkStatus();
  }

  absl::StatusOr<double> ElapsedMs(EventId from, EventId to) override {
    return events_.ElapsedMs(from, to);
  }

  // All memory is within reach of a CPU.
  absl::Status RegisterHost(const void*, size_t) override { return absl::OkStatus(); }
  void UnregisterHost(const void*) override {}

 protected:
  absl::StatusOr<void*> Map(size_t bytes, const std::string& what) override {
    void* p = MapMemory(-1, bytes);
    if (p == nullptr)
      return ResourceExhausted("device host: no memory for {} ({} bytes): {}", what, bytes,
                               strerror(errno));
    if (bytes >= kHugePage) madvise(p, bytes, MADV_HUGEPAGE);
    return p;
  }
  void Unmap(void* data, size_t bytes) override { munmap(data, bytes); }
  void UnmapHost(void* data, size_t bytes) override { munmap(data, bytes); }

 private:
  Stream& At(StreamId id) { return *streams_[static_cast<size_t>(id.value) - 1]; }

  const double copy_gbps_;
  Bus bus_;  // of the default stream
  Events events_;
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace

std::unique_ptr<Device> MakeHostDevice(size_t memory_bytes_max, double copy_gbps) {
  return std::make_unique<HostDevice>(memory_bytes_max, copy_gbps);
}

}  // namespace kt
