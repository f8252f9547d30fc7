// SPDX-License-Identifier: Apache-2.0
#include "coordinator/placement/expert_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "common/base/json.h"
#include "common/base/status.h"
#include "common/placement/expert_counts.h"

namespace kt {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ExpertStatsTest : public ::testing::Test {
 protected:
  ExpertStatsTest() {  // a dense layer, then two of 3 experts
    model_.moes.resize(1);
    model_.moes[0].num_experts = 3;
    model_.layers.resize(3);
    model_.layers[1].moe = model_.layers[2].moe = 0;
    model_.model_type = "test";
    options_.set_mode("stat");
    options_.set_buffer_size(2);
    options_.set_directory(::testing::TempDir());
  }
  ExpertStats Make() { return {model_, {1, {{}, {0}, {0, 2}}}, options_}; }

  static proto::StepResult Step(std::vector<std::vector<uint32_t>> layers, int first = 1) {
    proto::StepResult result;
    for (const auto& counts : layers) {
      proto::LayerExpertCounts* layer = result.add_expert_counts();
      layer->set_layer(first++);
      layer->mutable_counts()->Add(counts.begin(), counts.end());
    }
    return result;
  }
  static Json Read(const absl::StatusOr<std::string>& path) {
    if (!path.ok()) return Json(Message(path.status()));
    return ReadJsonFile(*path).value();
  }

  ModelConfig model_;
  proto::RecorderOptions options_;
};

TEST_F(ExpertStatsTest, HitsAreOfTheResidentsAtTheTime) {
  ExpertStats stats = Make();
  EXPECT_EQ(stats.use().hit_rate(), 0);
  stats.OnStep(Step({{1, 2, 3}, {10, 20, 30}}));
  EXPECT_EQ(stats.use().hits, 41u);
  EXPECT_EQ(stats.use().misses, 25u);
  proto::StepResult changed = Step({{0, 0, 0}});
  changed.set_placement_version(2);
  for (int l = 0; l < 3; ++l) changed.add_residents()->set_layer(l);
  stats.OnStep(changed);
  proto::StepResult after = Step({{1, 2, 3}});
  after.set_placement_version(2);
  stats.OnStep(after);
  EXPECT_EQ(stats.use().hits, 41u);
  EXPECT_EQ(stats.use().misses, 31u);
}

TEST_F(ExpertStatsTest, FailedStepsAndForeignLayersAreLeftOut) {
  ExpertStats stats = Make();
  proto::StepResult failed = Step({{1, 2, 3}});
  failed.set_error("lost");
  stats.OnStep(failed);
  stats.OnStep(Step({{1, 2, 3}}, 3));
  stats.OnStep(Step({{1, 2, 3}}, -1));
  stats.OnStep(Step({{1, 2, 3}}, 0));
  stats.OnStep(Step({{1, 2, 3, 4}}));
  EXPECT_EQ(stats.use().hits + stats.use().misses, 0u);
}

TEST_F(ExpertStatsTest, ADumpHasTheSumsSinceTheStartAndForgetsThem) {
  ExpertStats stats = Make();
  EXPECT_THAT(Message(stats.DumpRecord().status()), HasSubstr("no step has been recorded"));
  stats.OnStep(Step({{9, 9, 9}}));
  stats.StartRecord();
  for (int i = 0; i < 3; ++i) stats.OnStep(Step({{1, 2, 3}, {0, 0, 1}}));
  stats.StopRecord();
  stats.OnStep(Step({{9, 9, 9}}));
  auto path = stats.DumpRecord();
  const Json dump = Read(path);
  EXPECT_EQ(dump["logical_count"], ParseJson("[[0,0,0],[3,6,9],[0,0,3]]").value());
  EXPECT_EQ(dump["residents"], ParseJson("[[],[0],[0,2]]").value());
  EXPECT_EQ(dump["passes"], 3);
  EXPECT_EQ(dump["hits"], 6);
  EXPECT_EQ(dump["misses"], 15);
  EXPECT_EQ((*ReadExpertCounts(*path))[1], (std::vector<double>{3, 6, 9}));
  struct stat file;
  ASSERT_EQ(stat(path->c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);

  EXPECT_FALSE(stats.DumpRecord().ok());
  stats.StartRecord();
  stats.OnStep(Step({{1, 1, 1}}));
  auto second = stats.DumpRecord();
  EXPECT_NE(*second, *path);
  EXPECT_EQ(Read(second)["passes"], 1);
}

TEST_F(ExpertStatsTest, PerPassKeepsTheLastPasses) {
  options_.set_mode("per_pass");
  ExpertStats stats = Make();
  stats.StartRecord();
  for (uint32_t i = 1; i <= 3; ++i) stats.OnStep(Step({{i, 0, 0}, {0, i, 0}}));
  const Json dump = Read(stats.DumpRecord());
  EXPECT_EQ(dump["passes"], 3);
  EXPECT_EQ(dump["logical_count"],
            ParseJson("[[[0,0,0],[2,0,0],[0,2,0]],[[0,0,0],[3,0,0],[0,3,0]]]").value());
}

TEST_F(ExpertStatsTest, ADirectoryThatIsGoneIsNamed) {
  options_.set_directory("/nowhere");
  ExpertStats stats = Make();
  stats.StartRecord();
  stats.OnStep(Step({{1, 1, 1}}));
  EXPECT_THAT(Message(stats.DumpRecord().status()),
              HasSubstr("--expert-distribution-recorder-dir"));
}

}  // namespace
}  // namespace kt
