// SPDX-License-Identifier: Apache-2.0
#include "gpu_worker/expert_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_worker/device_host.h"
#include "gpu_worker/testing/expert_workers.h"
#include "kernels/cpu/gemm/packed_matrix.h"

namespace kt {
namespace {

using testing::ExpertWorkers;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::PackedSlice;
using testing::TinyModel;

void ExpectSame(const PackedMatrix& got, const PackedMatrix& want) {
  ASSERT_EQ(got.n, want.n);
  ASSERT_EQ(got.k, want.k);
  ASSERT_EQ(got.bias == nullptr, want.bias == nullptr);
  std::vector<float> a(static_cast<size_t>(got.k)), b(a.size());
  for (int row = 0; row < got.n; ++row) {
    UnpackRow(got, row, a.data());
    UnpackRow(want, row, b.data());
    ASSERT_EQ(a, b);
    if (got.bias == nullptr) continue;
    ASSERT_EQ(got.bias[row], want.bias[row]);
  }
}
void ExpectSame(const ExpertWeights& got, const ExpertWeights& want) {
  ASSERT_NO_FATAL_FAILURE(ExpectSame(got.gate, want.gate));
  ASSERT_NO_FATAL_FAILURE(ExpectSame(got.up, want.up));
  ASSERT_NO_FATAL_FAILURE(ExpectSame(got.down, want.down));
}

// What the parts hold is exactly `set`, of the slices of the pieces.
void ExpectHolds(const TinyModel& model, const ExpertPieces& pieces,
                 std::span<const ExpertPart> parts, size_t layer, const std::vector<int>& set) {
  if (set.empty()) {
    ASSERT_EQ(parts.size(), 0u);
    return;
  }
  ASSERT_EQ(parts.size(), pieces.pieces().size());
  ExpertSets sets(model.config.layers.size());
  sets[layer] = set;
  for (size_t p = 0; p < parts.size(); ++p) {
    const PackedSlice want(model, sets, pieces.pieces()[p].slice, {.exact = true});
    for (int e = 0; e < pieces.experts(layer); ++e) {
      const ExpertWeights& got = parts[p].experts[e];
      const bool held = std::binary_search(set.begin(), set.end(), e);
      ASSERT_EQ(got.gate.data != nullptr, held) << "expert " << e;
      if (!held) continue;
      ASSERT_EQ(got.gate.n, parts[p].intermediate);
      ASSERT_NO_FATAL_FAILURE(ExpectSame(got, want.bank.layer(static_cast<int>(layer))[e]));
    }
  }
}

std::vector<int> Rest(const std::vector<int>& all, const std::vector<int>& without) {
  std::vector<int> rest;
  std::set_difference(all.begin(), all.end(), without.begin(), without.end(),
                      std::back_inserter(rest));
  return rest;
}

struct Case {
  std::string model;
  int workers, ranks, rank;
};

struct StreamTest : ::testing::TestWithParam<Case> {};

// Two steps through every layer; a rank of several takes its slice from all workers it meets.
TEST_P(StreamTest, BringsEveryLayerOfARanksSlice) {
  const Case& c = GetParam();
  const TinyModel model(c.model);
  const ExpertForm form{.exact = true};
  ExpertSets resident = model.AllExperts();
  for (auto& set : resident) set.resize(set.size() / 4);
  ExpertSets held = model.AllExperts();
  for (size_t l = 0; l < held.size(); ++l) held[l] = Rest(held[l], resident[l]);
  const ExpertWorkers workers(model, held, form, c.workers);
  const IntermediateSlice rank = SliceOfWorker(model.intermediate(), c.rank, c.ranks).value();
  const ExpertPieces pieces =
      ExpertPieces::Make(model.stored, held, form, model.intermediate(), c.workers, rank).value();

  std::unique_ptr<Device> device = MakeHostDevice(0, 0);
  const PackedSlice bank(model, resident, rank, form);
  const ResidentExperts residents =
      ResidentExperts::Fixed(model.config, &bank.bank, resident, rank.rows());
  auto stream = ExpertStream::Create(*device, pieces, std::vector<size_t>(held.size(), 0)).value();
  EXPECT_EQ(stream->Begin(residents).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(stream->SetArenas(workers.Map(pieces).value()).ok());
  for (int step = 0; step < 2; ++step) {
    ASSERT_EQ(Message(stream->Begin(residents)), "");
    for (size_t l = 0; l < held.size(); ++l) {
      if (pieces.experts(l) == 0) continue;
      const auto parts = stream->Layer(l);
      ASSERT_TRUE(parts.ok()) << parts.status();
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(model, pieces, *parts, l, held[l])) << "layer " << l;
      ASSERT_TRUE(stream->Done().ok());
    }
    ASSERT_TRUE(stream->End().ok());
    uint64_t bytes = 0;
    for (size_t l = 0; l < held.size(); ++l) {
      for (int e : held[l]) bytes += pieces.Bytes(l, e);
    }
    EXPECT_EQ(stream->times().bytes, bytes);
    EXPECT_EQ(stream->times().staged, 0u);
  }
  // A step that is given up leaves nothing under way.
  ASSERT_TRUE(stream->Begin(residents).ok());
  ASSERT_TRUE(stream->End().ok());
  ASSERT_TRUE(stream->SetArenas(nullptr).ok());
}

// Ranks may be more than tiles.
TEST(ExpertStreamTest, ARankWithoutRowsGoesThroughTheLayersWithNothing) {
  const TinyModel model("qwen3_moe");
  const ExpertSets all = model.AllExperts();
  const ExpertForm form{.exact = true};
  const ExpertWorkers workers(model, all, form, 2);
  const ExpertPieces pieces =
      ExpertPieces::Make(model.stored, all, form, model.intermediate(), 2, {0, 0}).value();
  std::unique_ptr<Device> device = MakeHostDevice(0, 0);
  const ExpertSets none(all.size());
  const ResidentExperts residents = ResidentExperts::Fixed(model.config, nullptr, none, 0);
  auto stream = ExpertStream::Create(*device, pieces, std::vector<size_t>(all.size(), 0)).value();
  ASSERT_TRUE(stream->SetArenas(workers.Map(pieces).value()).ok());
  ASSERT_TRUE(stream->Begin(residents).ok());
  for (size_t l = 0; l < all.size(); ++l) {
    if (all[l].empty()) continue;
    const auto parts = stream->Layer(l);
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_THAT(*parts, IsEmpty());
    ASSERT_TRUE(stream->Done().ok());
  }
  ASSERT_TRUE(stream->End().ok());
  EXPECT_EQ(stream->times().bytes, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, StreamTest,
    ::testing::Values(Case{"qwen3_moe", 1, 1, 0}, Case{"qwen3_moe", 2, 1, 0},
                      Case{"qwen3_moe-tp8-fp8", 1, 4, 3}, Case{"qwen3_moe-tp8-fp8", 3, 2, 0},
                      Case{"qwen3_moe-tp8-fp8", 3, 2, 1}, Case{"gpt_oss-mxfp4", 2, 1, 0},
                      Case{"gpt_oss-mxfp4", 2, 4, 2}, Case{"kimi_k25-int4", 1, 4, 1},
                      Case{"qwen3_moe-w8a16", 3, 2, 1}, Case{"minimax_m2-fp8", 2, 3, 2}));

TEST(ExpertArenasTest, AreRefusedWhereWorkersHoldOthers) {
  const TinyModel model("qwen3_moe");
  const ExpertWorkers workers(model, model.AllExperts(), {}, 2);
  ExpertSets fewer = model.AllExperts();
  fewer[0].pop_back();
  const IntermediateSlice whole{0, model.intermediate()};
  const auto pieces = [&](const ExpertSets& sets, int count) {
    return ExpertPieces::Make(model.stored, sets, {}, model.intermediate(), count, whole).value();
  };
  EXPECT_TRUE(workers.Map(pieces(model.AllExperts(), 2)).ok());
  EXPECT_THAT(Message(workers.Map(pieces(fewer, 2)).status()), HasSubstr("fingerprint"));
  EXPECT_THAT(Message(workers.Map(pieces(model.AllExperts(), 1)).status()),
              HasSubstr("2 workers, configured are 1"));
}

// Four of sixteen experts of each layer are resident and change places.
struct ChangingTest : ::testing::Test {
  const TinyModel model{"gpt_oss-mxfp4"};
  const ExpertForm form{.exact = true};
  const ExpertSets all = model.AllExperts();
  const ExpertWorkers workers{model, all, form, 2};
  const ExpertPieces pieces = ExpertPieces::Make(model.stored, all, form, model.intermediate(), 2,
                                                 {0, model.intermediate()})
                                  .value();
  const std::shared_ptr<const ExpertArenas> arenas = workers.Map(pieces).value();
  const ExpertSets initial = ExpertSets(all.size(), std::vector<int>{0, 1, 2, 3});
  std::unique_ptr<Device> device = MakeHostDevice(0, 0);
  ResidentExperts residents =
      ResidentExperts::Changing(model.config, *device, pieces, initial).value();
  std::unique_ptr<ExpertStream> stream =
      ExpertStream::Create(*device, pieces, std::vector<size_t>(all.size(), 4)).value();

  void SetUp() override {
    ASSERT_TRUE(stream->SetArenas(arenas).ok());
    ASSERT_EQ(Message(residents.Reset(*arenas)), "");
  }
  // A layerwise step after which layers below `layers` have these residents.
  void Step(const std::vector<int>& set, size_t layers) {
    ASSERT_EQ(Message(stream->Begin(residents)), "");
    for (size_t l = 0; l < layers; ++l) {
      const std::vector<int> resident = residents.set(l);
      const auto parts = stream->Layer(l);
      ASSERT_TRUE(parts.ok());
      ASSERT_NO_FATAL_FAILURE(ExpectHolds(model, pieces, *parts, l, Rest(all[l], resident)));
      ASSERT_EQ(Message(residents.Change(l, set, *parts)), "");
      ASSERT_TRUE(stream->Done().ok());
    }
    ASSERT_TRUE(stream->End().ok());
  }
  void ExpectResidents(size_t layer, const std::vector<int>& set) {
    EXPECT_EQ(residents.set(layer), set);
    ExpectHolds(model, pieces, residents.parts(layer), layer, set);
  }
};

TEST_F(ChangingTest, BeginWithThePlacementAtStart) {
  for (size_t l = 0; l < all.size(); ++l) ExpectResidents(l, {0, 1, 2, 3});
  EXPECT_EQ(residents.version(), 1u);
}

TEST_F(ChangingTest, NewcomersKeepTheBytesOfTheBuffer) {
  ASSERT_NO_FATAL_FAILURE(Step({1, 3, 7, 15}, all.size()));
  for (size_t l = 0; l < all.size(); ++l) ExpectResidents(l, {1, 3, 7, 15});
  EXPECT_EQ(residents.version(), 2u);
  EXPECT_EQ(residents.changed().size(), all.size());
  ASSERT_EQ(Message(residents.BeginStep(2, arenas.get())), "");
  EXPECT_THAT(residents.changed(), IsEmpty());
  ASSERT_NO_FATAL_FAILURE(Step({0, 1, 2, 15}, all.size()));
  ExpectResidents(1, {0, 1, 2, 15});
}

TEST_F(ChangingTest, AStepThatChangesNothingHasNoVersionOfItsOwn) {
  ASSERT_NO_FATAL_FAILURE(Step({0, 1, 2, 3}, all.size()));
  EXPECT_EQ(residents.version(), 1u);
}

TEST_F(ChangingTest, AStepThatDoesNotCountIsUndone) {
  ASSERT_NO_FATAL_FAILURE(Step({4, 5, 6, 7}, all.size()));
  ASSERT_EQ(Message(residents.BeginStep(2, arenas.get())), "");
  ASSERT_NO_FATAL_FAILURE(Step({0, 5, 6, 8}, 2));  // given up after two layers
  ExpectResidents(1, {0, 5, 6, 8});
  ASSERT_EQ(Message(residents.BeginStep(2, arenas.get())), "");
  for (size_t l = 0; l < all.size(); ++l) ExpectResidents(l, {4, 5, 6, 7});
  EXPECT_EQ(residents.version(), 2u);
}

TEST_F(ChangingTest, OtherVersionsAreRefusedWithBoth) {
  ASSERT_NO_FATAL_FAILURE(Step({4, 5, 6, 7}, all.size()));
  ASSERT_TRUE(residents.BeginStep(2, arenas.get()).ok());
  for (uint64_t version : {0, 1, 3}) {
    const std::string message = Message(residents.BeginStep(version, arenas.get()));
    EXPECT_THAT(message, HasSubstr("placement version " + std::to_string(version)));
    EXPECT_THAT(message, HasSubstr("has 2"));
  }
  ExpectResidents(0, {4, 5, 6, 7});
}

TEST_F(ChangingTest, ResetGoesBackToTheStart) {
  ASSERT_NO_FATAL_FAILURE(Step({4, 5, 6, 7}, 3));
  ASSERT_EQ(Message(residents.Reset(*arenas)), "");
  for (size_t l = 0; l < all.size(); ++l) ExpectResidents(l, {0, 1, 2, 3});
  EXPECT_EQ(residents.version(), 1u);
}

}  // namespace
}  // namespace kt
