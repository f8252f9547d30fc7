// SPDX-License-Identifier: Apache-2.0
// For tests: a tiny model, and arenas as CPU expert workers would give them to the node.
#ifndef KT_GPU_WORKER_TESTING_EXPERT_WORKERS_H_
#define KT_GPU_WORKER_TESTING_EXPERT_WORKERS_H_

#include <map>
#include <memory>
#include <numeric>
#include <string>

#include "common/base/aligned_buffer.h"
#include "common/base/status.h"
#include "common/model/model_config.h"
#include "gpu_worker/expert_pieces.h"
#include "worker/expert_arena.h"
#include "worker/expert_bank.h"

namespace kt::testing {

struct TinyModel {
  explicit TinyModel(const std::string& name)
      : dir(KT_SOURCE_DIR "/tests/data/models/" + name),
        config(LoadModelConfig(dir).value()),
        checkpoint(Checkpoint::Open(dir).value()),
        stored(ResolveWeights(config, *checkpoint).value()) {}

  int intermediate() const { return config.moes[0].intermediate; }
  // Every expert of every layer.
  ExpertSets AllExperts() const {
    ExpertSets sets(config.layers.size());
    for (size_t l = 0; l < sets.size(); ++l) {
      sets[l].resize(stored.layers[l].experts.size());
      std::iota(sets[l].begin(), sets[l].end(), 0);
    }
    return sets;
  }

  const std::string dir;
  const ModelConfig config;
  const std::unique_ptr<Checkpoint> checkpoint;
  const StoredModel stored;
};

// Slices of experts packed as they are in a worker of their own.
struct PackedSlice {
  PackedSlice(const TinyModel& model, const ExpertSets& sets, IntermediateSlice slice,
              const ExpertForm& form)
      : memory(ExpertBank::Bytes(model.config, model.stored, sets, slice, form)),
        bank(ExpertBank::Load(model.config, model.stored, *model.checkpoint, sets, slice, form,
                              memory.data(), serial, [](uint64_t) {})
                 .value()) {}
  Serial serial;
  AlignedBuffer memory;
  ExpertBank bank;
};

class ExpertWorkers {
 public:
  ExpertWorkers(const TinyModel& model, const ExpertSets& sets, const ExpertForm& form,
                int workers) {
    for (int w = 0; w < workers; ++w) {
      const auto slice = SliceOfWorker(model.intermediate(), w, workers).value();
      const BankLayout layout(model.stored, sets, slice, form);
      const std::string name = ExpertArenaName(w, 7);
      Segment segment = Segment::Create(name, kArenaHeaderBytes + layout.bytes()).value();
      WriteArenaHeader(layout, segment.data());
      Serial serial;
      ExpertBank::Load(model.config, model.stored, *model.checkpoint, sets, slice, form,
                       segment.data() + kArenaHeaderBytes, serial, [](uint64_t) {})
          .value();
      segments_.emplace(name, std::move(segment));
      proto::ExpertEndpoint* endpoint = request_.add_workers();
      endpoint->set_index(w);
      endpoint->set_incarnation(7);
    }
  }
  absl::StatusOr<std::shared_ptr<const ExpertArenas>> Map(const ExpertPieces& pieces) const {
    return ExpertArenas::Map(
        request_, pieces, [this](const std::string& name) -> absl::StatusOr<Segment> {
          return Segment::FromFd(dup(segments_.at(name).fd()), 1, MapAccess::kRead);
        });
  }

 private:
  std::map<std::string, Segment> segments_;
  proto::AttachExpertsRequest request_;
};

}  // namespace kt::testing

#endif  // KT_GPU_WORKER_TESTING_EXPERT_WORKERS_H_
