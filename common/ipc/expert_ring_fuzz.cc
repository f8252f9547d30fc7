// SPDX-License-Identifier: Apache-2.0
// Input: the bytes of a segment. Nothing in them may make a worker read or write outside the
// mapping.
#include <cstring>

#include "common/ipc/expert_ring.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || size > (1u << 20)) return 0;
  auto segment = kt::Segment::Create("fuzz", size);
  if (!segment.ok()) return 0;
  std::memcpy(segment->data(), data, size);
  auto worker = kt::RingWorker::Attach(*std::move(segment), 0, {.spin_us = 0});
  if (!worker.ok()) return 0;
  for (int i = 0; i < 4; ++i) {
    auto task = worker->Next(0);
    if (!task.ok() || !task->has_value()) break;
    const kt::RingTask& t = **task;
    size_t row = static_cast<size_t>(worker->shape().hidden);
    std::memset(t.results, 0, static_cast<size_t>(t.tokens) * row * 4);
    volatile uint8_t last =
        static_cast<uint8_t*>(t.rows)[static_cast<size_t>(t.tokens) * row *
                                          static_cast<size_t>(worker->shape().activation_bytes) -
                                      1];
    (void)last;
    worker->Complete(t, absl::StatusCode::kOk);
  }
  return 0;
}
