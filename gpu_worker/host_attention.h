// SPDX-License-Identifier: Apache-2.0
// The operations of the host device that read and write the caches: attention of every kind.
#ifndef KT_GPU_WORKER_HOST_ATTENTION_H_
#define KT_GPU_WORKER_HOST_ATTENTION_H_

#include <vector>

#include "common/base/parallel.h"
#include "gpu_worker/ops.h"
#include "gpu_worker/ops_host.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/cpu/attention/mla.h"
#include "kernels/cpu/attention/plain_attention.h"
#include "kernels/cpu/delta_net/delta_net.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/indexer/indexer.h"

namespace kt {

DeltaNetShape DeltaNetShapeOf(const AttentionConfig& a);

// Meaning of the functions: ops.h. One thread calls; work is split over `parallel`.
class HostAttention {
 public:
  HostAttention(const HostOpsOptions& options, const ModelConfig& config, Parallel& parallel);
  size_t ScratchBytes() const { return scratch_bytes_; }
  void SetScratch(uint8_t* scratch) { scratch_ = scratch; }  // ScratchBytes, aligned to 64

  void CopyBlock(const AttentionConfig& a, const IndexerConfig* indexer, const LayerCache& cache,
                 int source, int target);
  void KvWrite(const AttentionConfig& a, const LayerCache& cache, const void* k, const void* v,
               std::span<const SequenceView> sequences);
  void Attention(const AttentionConfig& a, const LayerCache& cache, const float* sinks,
                 const void* q, std::span<const SequenceView> sequences, void* out);
  void LatentWrite(const AttentionConfig& a, const LayerCache& cache, const void* c,
                   const void* k_rope, int64_t k_rope_stride,
                   std::span<const SequenceView> sequences);
  void LatentAttention(const AttentionConfig& a, const LayerCache& cache, const LatentHeads& heads,
                       const void* q, const int32_t* selection, int top_k,
                       std::span<const SequenceView> sequences, void* out);
  void IndexWrite(const IndexerConfig& ix, const LayerCache& cache, const void* k,
                  std::span<const SequenceView> sequences);
  void IndexSelect(const IndexerConfig& ix, const LayerCache& cache, const void* q, float* w,
                   std::span<const SequenceView> sequences, int32_t* selection);
  void DeltaNet(const AttentionConfig& a, const LayerCache& cache, const DeltaNetWeights& weights,
                float norm_eps, const void* qkv, const void* z, const void* b, const void* alpha,
                std::span<const SequenceView> sequences, void* out);

 private:
  // Rows [first_row, first_row + tokens) of one sequence inside a block of rows.
  struct Piece {
    const SequenceView* sequence;
    int first_row;
    int tokens;
    int start_position;
  };
  // Rows [begin, end) of the step in the absorbed form.
  void AbsorbedAttention(const AttentionConfig& a, const LayerCache& cache,
                         const LatentHeads& heads, const void* q, const int32_t* selection,
                         int top_k, std::span<const SequenceView> sequences, int begin, int end,
                         void* out);
  // One sequence over keys and values that are expanded from the cache, some heads at a time.
  void PlainAttention(const AttentionConfig& a, const LayerCache& cache, const LatentHeads& heads,
                      const void* q, const SequenceView& s, void* out);
  // Into pieces_.
  void FindPieces(std::span<const SequenceView> sequences, int begin, int end);
  KvCache CacheOf(const AttentionConfig& a, const LayerCache& cache) const;
  MlaCache LatentCacheOf(const AttentionConfig& a, const LayerCache& cache) const;
  MlaCache IndexCacheOf(const IndexerConfig& ix, const LayerCache& cache) const;
  // Per head h: y(t, h) [n] activation = w[h] x(t, h).
  void HeadProducts(std::span<const PackedMatrix> w, const HeadsView& x, int tokens,
                    const HeadsView& y);
  // Runs tasks(args[i]) tasks of every call.
  template <typename Args, typename Tasks, typename Run>
  void RunTasks(const std::vector<Args>& calls, Tasks tasks, Run run);

  const void* At(const void* p, int64_t elements) const {
    return static_cast<const uint8_t*>(p) + elements * element_;
  }
  void* At(void* p, int64_t elements) const {
    return static_cast<uint8_t*>(p) + elements * element_;
  }
  uint8_t* ThreadScratch(int thread) const {
    return scratch_ + static_cast<size_t>(thread) * thread_bytes_;
  }

  const HostOpsOptions o_;
  const int element_;  // bytes of an activation
  Parallel& parallel_;
  const GemmKernels& gemm_;
  uint8_t* scratch_ = nullptr;
  // Scratch: one piece per thread, then what LatentAttention and IndexSelect keep for a block of
  // rows.
  size_t thread_bytes_ = 0, absorbed_bytes_ = 0, plain_bytes_ = 0, scratch_bytes_ = 0;
  int index_rows_ = 0;  // of a block of IndexSelect
  // Kept from call to call, so that a step allocates nothing once they have grown.
  std::vector<int> first_tasks_;
  std::vector<Piece> pieces_;
  std::vector<AttentionArgs> attention_calls_;
  std::vector<MlaArgs> latent_calls_;
  std::vector<IndexerArgs> index_calls_;
  std::vector<DeltaNetArgs> delta_calls_;
};

}  // namespace kt

#endif  // KT_GPU_WORKER_HOST_ATTENTION_H_
