// SPDX-License-Identifier: Apache-2.0
// Everything of a rank but its weights: operations, cache, forward pass and engine, on a device.
// The memory plan builds it on a device without memory, so what it says is what workers do.
#ifndef KT_GPU_WORKER_RANK_ENGINE_H_
#define KT_GPU_WORKER_RANK_ENGINE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/base/parallel.h"
#include "gpu_worker/engine.h"
#include "gpu_worker/ops_host.h"
#include "gpu_worker/rank_experts.h"
#include "proto/config.pb.h"

namespace kt {

struct RankEngine {
  std::unique_ptr<Ops> ops;
  KvPool cache;
  std::unique_ptr<Forward> forward;
  std::unique_ptr<Engine> engine;
};

// What it is built from; outlives it. Weights may be empty where nothing is going to run.
struct RankParts {
  const proto::RuntimeConfig* config;
  const ModelConfig* model;
  Device* device;
  Parallel* parallel;
  Isa isa = Isa::kScalar;
  int rank = 0;
  const DenseWeights* dense;
  const RankExperts* experts;
  ResidentExperts* residents;
  ExpertStream* stream;  // null: no layerwise steps
};

// ResourceExhausted: the device has not enough memory. InvalidArgument: what the model and the
// options ask for does not go together.
absl::StatusOr<std::unique_ptr<RankEngine>> BuildRankEngine(const RankParts& parts);

}  // namespace kt

#endif  // KT_GPU_WORKER_RANK_ENGINE_H_
