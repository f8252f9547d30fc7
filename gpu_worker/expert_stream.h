// SPDX-License-Identifier: Apache-2.0
// Layerwise steps: brings the experts of one MoE layer after the other from the CPU workers' arenas
// to the device. Two buffers, each large enough for any layer: while one layer is computed, the
// next one is copied, on a stream of its own.
//
//   Begin   Layer … compute … Done   Layer … compute … Done   …   End
//
// Experts that are resident are not copied. The bytes are those of the arena: nothing is laid out
// anew on the host.
// Threads  as Device. Nothing is allocated in a step but for lists of copies.
#ifndef KT_GPU_WORKER_EXPERT_STREAM_H_
#define KT_GPU_WORKER_EXPERT_STREAM_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/device.h"
#include "gpu_worker/expert_pieces.h"
#include "gpu_worker/resident_experts.h"

namespace kt {

struct StreamTimes {
  uint64_t bytes = 0;
  double copy_ms = 0;   // copies took
  double stall_ms = 0;  // computing waited for them
  uint64_t staged = 0;  // copies from memory that is not page-locked
};

class ExpertStream {
 public:
  // `residents`: how many experts of each layer are never copied. All outlive the stream.
  static absl::StatusOr<std::unique_ptr<ExpertStream>> Create(Device& device,
                                                              const ExpertPieces& pieces,
                                                              const std::vector<size_t>& residents);
  // Of both buffers.
  static size_t BufferBytes(const ExpertPieces& pieces, const std::vector<size_t>& residents);
  ~ExpertStream();

  // Between steps. Null: lets go of them.
  absl::Status SetArenas(std::shared_ptr<const ExpertArenas> arenas);
  const ExpertArenas* arenas() const { return arenas_.get(); }
  // GB/s of copying a layer, and the bytes of a step; 0: there is nothing to copy. Between steps.
  struct Rate {
    double gbytes_per_s = 0;
    uint64_t step_bytes = 0;
  };
  absl::StatusOr<Rate> Measure(const ResidentExperts& residents);
  // What Measure has copied of the first MoE layer.
  std::span<const ExpertPart> first() const { return buffers_[0].parts; }

  // A step. FailedPrecondition: there are no arenas.
  absl::Status Begin(const ResidentExperts& residents);
  // Of MoE layers in order: what was copied, once work of the default stream issued from now on can
  // use it; valid until Done.
  absl::StatusOr<std::span<const ExpertPart>> Layer(size_t layer);
  // Work that uses the layer has been issued to the default stream.
  absl::Status Done();
  // After a failure too: nothing is under way any more.
  absl::Status End();
  const StreamTimes& times() const { return times_; }  // of the last step

 private:
  struct Buffer {
    DeviceBuffer memory;
    std::vector<std::vector<ExpertWeights>> tables;  // [piece][expert]
    std::vector<ExpertPart> parts;
    EventId used;  // computing has finished with it
  };
  struct Stage {  // a MoE layer
    size_t layer;
    EventId begun, copied, wanted;
    bool was_wanted;
  };

  ExpertStream(Device& device, const ExpertPieces& pieces) : device_(device), pieces_(pieces) {}
  Buffer& BufferOf(size_t stage) { return buffers_[stage % buffers_.size()]; }
  absl::Status Issue(size_t stage);

  Device& device_;
  const ExpertPieces& pieces_;
  StreamId copies_;
  std::array<Buffer, 2> buffers_;
  std::vector<Stage> stages_;
  std::vector<std::vector<CopyRun>> runs_;  // [piece], of the layer being issued

  std::shared_ptr<const ExpertArenas> arenas_;
  std::vector<uint8_t> registered_;  // [worker]

  // A step.
  const ResidentExperts* residents_ = nullptr;
  size_t issued_ = 0, current_ = 0;
  StreamTimes times_;
};

}  // namespace kt

#endif  // KT_GPU_WORKER_EXPERT_STREAM_H_
