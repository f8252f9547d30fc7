// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/shim/simt.h"

#include <fmt/format.h>

#include <deque>
#include <memory>
#include <vector>

#include "kernels/cuda/shim/fibre.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace kt::shim {
namespace {

constexpr unsigned kFullWarp = 0xffffffffu;

// Where a thread waits: at a barrier of the block or with the lanes of a mask.
struct Wait {
  enum Kind { kNone, kBlock, kWarp } kind = kNone;
  unsigned mask = 0;
  const char* file = nullptr;
  unsigned line = 0, column = 0;
  bool operator==(const Wait&) const = default;
  std::string ToString() const {
    return fmt::format("{} at line {}", kind == kBlock ? "__syncthreads" : "warp operation", line);
  }
};

struct Thread {
  std::unique_ptr<Fibre> fibre = std::make_unique<Fibre>();
  Wait wait;
  int shared_arrays = 0;             // met so far
  uint64_t given = 0, received = 0;  // in a shuffle
  int source = 0;                    // lane to receive from
};

class Block {
 public:
  // Returns the fault, if any.
  std::string Run(const KernelShape& shape, const std::function<void()>& body) {
    shape_ = &shape;
    while (threads_.size() < static_cast<size_t>(shape.threads)) threads_.emplace_back();
    warp_epochs_.assign((shape.threads + kWarpSize - 1) / kWarpSize, 0);
    shared_.clear();
    fault_.clear();
    epoch_ = 0;
    for (int t = 0; t < shape.threads; ++t) {
      threads_[t].wait = Wait();
      threads_[t].shared_arrays = 0;
      threads_[t].fibre->Start(&body);
    }
    while (fault_.empty() && RunReady()) Release();
    return fault_;
  }

  // The rest is called in a fibre.
  [[noreturn]] void Fault(const char* what, int64_t number) {
    fault_ = fmt::format("{}: block {}, thread {}: {}", shape_->name, blockIdx.x, current_, what);
    if (number != -1) fault_ += fmt::format(" {}", number);
    threads_[current_].fibre->Suspend();
    std::abort();  // a faulted thread is never resumed
  }
  void WaitHere(Wait::Kind kind, unsigned mask, const std::source_location& where) {
    threads_[current_].wait = {kind, mask, where.file_name(), where.line(), where.column()};
    threads_[current_].fibre->Suspend();
  }
  uint64_t Shuffle(unsigned mask, uint64_t bits, int source, const std::source_location& where) {
    if (!(mask >> lane() & 1)) Fault("a shuffle's mask lacks the calling lane", lane());
    if (source < 0 || source >= kWarpSize || !(mask >> source & 1))
      Fault("shuffle from a lane outside the mask:", source);
    Thread& thread = threads_[current_];
    thread.given = bits;
    thread.source = source;
    WaitHere(Wait::kWarp, mask, where);
    return thread.received;
  }
  SharedCell* NextShared(int count) {
    const size_t index = threads_[current_].shared_arrays++;
    if (index == shared_.size()) shared_.emplace_back(count);
    if (shared_[index].size() != static_cast<size_t>(count))
      Fault("threads disagree about the size of shared array", static_cast<int64_t>(index));
    return shared_[index].data();
  }
  int lane() const { return current_ % kWarpSize; }

  SharedCell::Access Now() const {
    return {current_ / kWarpSize, lane(), epoch_, warp_epochs_[current_ / kWarpSize]};
  }
  // Whether the running thread's access is not ordered after an earlier one.
  bool Races(const SharedCell::Access& earlier) const {
    const SharedCell::Access now = Now();
    if (earlier.block_epoch != now.block_epoch) return false;
    return earlier.warp != now.warp ||
           (earlier.lane != now.lane && earlier.warp_epoch == now.warp_epoch);
  }

 private:
  // Runs every thread that does not wait. False when all have finished (or one faulted).
  bool RunReady() {
    bool waiting = false;
    for (current_ = 0; current_ < shape_->threads; ++current_) {
      Thread& thread = threads_[current_];
      if (thread.fibre->done()) continue;
      if (thread.wait.kind == Wait::kNone) {
        threadIdx.x = static_cast<unsigned>(current_);
        thread.fibre->Resume();
        if (!fault_.empty()) return false;
      }
      waiting = waiting || !thread.fibre->done();
    }
    return waiting;
  }

  // Lets go the warps, else the block, whose threads have all arrived; faults where nobody can go
  // on.
  void Release() {
    bool released = false;
    for (int t = 0; t < shape_->threads; ++t) released = ReleaseLanes(t) || released;
    if (released || Diverged()) return;
    for (int t = 0; t < shape_->threads; ++t) threads_[t].wait = Wait();
    ++epoch_;
  }

  // Completes the warp operation in which thread t waits, if all lanes of its mask are there.
  bool ReleaseLanes(int t) {
    const Wait wait = threads_[t].wait;
    if (threads_[t].fibre->done() || wait.kind != Wait::kWarp) return false;
    const int begin = t / kWarpSize * kWarpSize;
    const auto each_lane = [&](auto f) {
      for (int lane = 0; lane < kWarpSize; ++lane) {
        if ((wait.mask >> lane & 1) && !f(begin + lane)) return false;
      }
      return true;
    };
    if (!each_lane([&](int i) {
          return i < shape_->threads && !threads_[i].fibre->done() && threads_[i].wait == wait;
        }))
      return false;
    each_lane([&](int i) {
      threads_[i].received = threads_[begin + threads_[i].source].given;
      threads_[i].wait = Wait();
      return true;
    });
    // Accesses to shared memory are taken as ordered by operations of the whole warp only.
    if (wait.mask == kFullWarp) ++warp_epochs_[t / kWarpSize];
    return true;
  }

  // Nobody can run. False if that is because all are at one barrier of the block; else names two
  // threads that disagree.
  bool Diverged() {
    int first = 0;
    while (threads_[first].fibre->done()) ++first;
    const Wait& wait = threads_[first].wait;
    const std::string head = fmt::format("{}: block {}: threads diverge: thread {} waits in {}",
                                         shape_->name, blockIdx.x, first, wait.ToString());
    for (int t = 0; t < shape_->threads; ++t) {
      const bool partner = wait.kind == Wait::kBlock ||
                           (t / kWarpSize == first / kWarpSize && (wait.mask >> t % kWarpSize & 1));
      if (!partner || (!threads_[t].fibre->done() && threads_[t].wait == wait)) continue;
      fault_ = fmt::format(
          "{}, thread {} {}", head, t,
          threads_[t].fibre->done() ? "has returned" : "in " + threads_[t].wait.ToString());
      return true;
    }
    if (wait.kind == Wait::kWarp) fault_ = head + ", whose mask names lanes that the block lacks";
    return !fault_.empty();
  }

  const KernelShape* shape_ = nullptr;
  std::vector<Thread> threads_;
  std::vector<int> warp_epochs_;  // operations of the whole warp so far
  std::deque<std::vector<SharedCell>> shared_;
  std::string fault_;
  int current_ = 0;
  int epoch_ = 0;  // barriers of the block so far
};

Block& TheBlock() {
  static Block block;
  return block;
}

}  // namespace

std::string RunKernel(const KernelShape& shape, const std::function<void()>& thread) {
  gridDim = shape.grid;
  blockDim = dim3(static_cast<unsigned>(shape.threads));
  threadIdx = dim3(0, 0, 0);
  for (unsigned x = 0; x < shape.grid.x; ++x) {
    blockIdx = dim3(x, 0, 0);
    if (std::string fault = TheBlock().Run(shape, thread); !fault.empty()) return fault;
  }
  return "";
}

void Fault(const char* what, int64_t number) { TheBlock().Fault(what, number); }
uint64_t Shuffle(unsigned mask, uint64_t bits, int source, const std::source_location& where) {
  return TheBlock().Shuffle(mask, bits, source, where);
}
int Lane() { return TheBlock().lane(); }
SharedCell* SharedCells(int count) { return TheBlock().NextShared(count); }

void CheckRead(SharedCell& cell) {
  if (!cell.written) Fault("shared memory is read before it was written");
  if (TheBlock().Races(cell.write))
    Fault("shared memory is read that another thread wrote, with no barrier between");
  const SharedCell::Access now = TheBlock().Now();
  SharedCell::Access& read = cell.read;
  if (read.block_epoch != now.block_epoch) {
    read = now;
    return;
  }
  if (read.warp != now.warp) {
    read.warp = -1;
  } else if (read.warp_epoch == now.warp_epoch && read.lane != now.lane) {
    read.lane = -1;
  } else {
    read = now;
  }
}

void CheckWrite(SharedCell& cell) {
  if (cell.written && TheBlock().Races(cell.write))
    Fault("shared memory is written by two threads with no barrier between");
  if (TheBlock().Races(cell.read))
    Fault("shared memory is written that another thread read, with no barrier between");
  cell.written = true;
  cell.write = TheBlock().Now();
}

}  // namespace kt::shim

void __syncthreads(std::source_location where) {
  kt::shim::TheBlock().WaitHere(kt::shim::Wait::kBlock, 0, where);
}
void __syncwarp(unsigned mask, std::source_location where) {
  kt::shim::TheBlock().WaitHere(kt::shim::Wait::kWarp, mask, where);
}
