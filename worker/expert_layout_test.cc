// SPDX-License-Identifier: Apache-2.0
// Cuts of packed experts against experts packed from the same slice, on every tiny model.
#include "worker/expert_layout.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <memory>

#include "common/base/aligned_buffer.h"
#include "common/base/status.h"
#include "common/model/model_config.h"
#include "worker/expert_arena.h"
#include "worker/expert_bank.h"

namespace kt {
namespace {

struct Model {
  explicit Model(const std::string& dir)
      : config(LoadModelConfig(dir).value()),
        checkpoint(Checkpoint::Open(dir).value()),
        stored(ResolveWeights(config, *checkpoint).value()) {
    for (size_t l = 0; l < config.layers.size(); ++l) {
      sets.emplace_back();
      if (config.layers[l].moe) sets.back() = {1, 2, 5};
    }
  }

  ExpertBank Load(IntermediateSlice slice, const ExpertForm& form, AlignedBuffer& memory) {
    memory = AlignedBuffer(ExpertBank::Bytes(config, stored, sets, slice, form));
    std::memset(memory.data(), 0, memory.size());
    Serial serial;
    return ExpertBank::Load(config, stored, *checkpoint, sets, slice, form, memory.data(), serial,
                            [](uint64_t) {})
        .value();
  }

  ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  StoredModel stored;
  ExpertSets sets;
};

std::vector<std::string> ModelDirs() {
  std::vector<std::string> dirs;
  for (const auto& entry :
       std::filesystem::directory_iterator(KT_SOURCE_DIR "/tests/data/models")) {
    if (entry.is_directory()) dirs.push_back(entry.path().string());
  }
  return dirs;
}

void Copy(const std::vector<CopyRun>& runs, const uint8_t* source, uint8_t* target) {
  for (const CopyRun& run : runs) {
    for (size_t row = 0; row < run.rows; ++row) {
      std::memcpy(target + run.target + row * run.target_stride,
                  source + run.source + row * run.source_stride, run.bytes);
    }
  }
}

std::vector<float> Row(const PackedMatrix& m, int row) {
  std::vector<float> out(static_cast<size_t>(m.k));
  UnpackRow(m, row, out.data());
  return out;
}

// Rows of `piece` are rows `first_row` ... and columns `first_column` ... of `whole`.
void ExpectPart(const PackedMatrix& piece, const PackedMatrix& whole, int first_row,
                int first_column) {
  for (int r = 0; r < piece.n; ++r) {
    const std::vector<float> got = Row(piece, r), all = Row(whole, first_row + r);
    const std::vector<float> want(all.begin() + first_column, all.begin() + first_column + piece.k);
    ASSERT_EQ(got, want) << "row " << r;
  }
}

void ExpectSameBiases(const float* got, const float* want, int n) {
  ASSERT_EQ(got == nullptr, want == nullptr);
  for (int i = 0; got != nullptr && i < n; ++i) ASSERT_EQ(got[i], want[i]);
}

class CutTest : public ::testing::TestWithParam<std::string> {};

TEST_P(CutTest, IsThePieceOfThePackedSlice) {
  Model model(GetParam());
  const int intermediate = model.config.moes[0].intermediate;
  for (const char* method : {"", "AMXINT8", "AMXINT4"}) {
    for (bool exact : {false, true}) {
      const ExpertForm form = ExpertFormOf(method, exact);
      for (IntermediateSlice held :
           {IntermediateSlice{0, intermediate}, IntermediateSlice{16, intermediate}}) {
        AlignedBuffer memory;
        const ExpertBank bank = model.Load(held, form, memory);
        const BankLayout layout(model.stored, model.sets, held, form);
        ASSERT_EQ(layout.bytes(), memory.size());
        for (int begin = held.begin; begin < held.end; begin += 48) {
          for (int end : {begin + 32, held.end}) {
            const IntermediateSlice piece{begin, std::min(end, held.end)};
            SCOPED_TRACE(fmt::format("{} exact {} held {}-{} piece {}-{}", method, exact,
                                     held.begin, held.end, piece.begin, piece.end));
            AlignedBuffer direct_memory;
            const ExpertBank direct = model.Load(piece, form, direct_memory);
            for (size_t l = 0; l < model.sets.size(); ++l) {
              for (int e : model.sets[l]) {
                const auto& place = *layout.Find(l, e);
                const ExpertWeights& whole = bank.layer(static_cast<int>(l))[e];
                ASSERT_EQ(memory.data() + place.at, whole.gate.data);
                const ExpertCut cut = CutExpert(place.layout, held, piece);
                AlignedBuffer target(cut.layout.bytes());
                std::memset(target.data(), 0, target.size());
                Copy(cut.runs, memory.data() + place.at, target.data());
                const ExpertWeights got = cut.layout.At(target.data());
                const int first = piece.begin - held.begin;
                ASSERT_NO_FATAL_FAILURE(ExpectPart(got.gate, whole.gate, first, 0));
                ASSERT_NO_FATAL_FAILURE(ExpectPart(got.up, whole.up, first, 0));
                ASSERT_NO_FATAL_FAILURE(ExpectPart(got.down, whole.down, 0, first));
                const ExpertWeights& want = direct.layer(static_cast<int>(l))[e];
                ASSERT_NO_FATAL_FAILURE(
                    ExpectSameBiases(got.gate.bias, want.gate.bias, got.gate.n));
                ASSERT_NO_FATAL_FAILURE(ExpectSameBiases(got.up.bias, want.up.bias, got.up.n));
                ASSERT_NO_FATAL_FAILURE(
                    ExpectSameBiases(got.down.bias, want.down.bias, got.down.n));
                if (form.int8_x) continue;  // scales of the slice it was rounded in
                ASSERT_EQ(got.gate.format, want.gate.format);
                ASSERT_EQ(got.down.format, want.down.format);
                ASSERT_EQ(
                    std::memcmp(target.data(), want.gate.data,
                                LayoutOf(model.stored.layers[l].experts[static_cast<size_t>(e)],
                                         piece, form)
                                    .bytes()),
                    0);
              }
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CutTest, ::testing::ValuesIn(ModelDirs()), [](const auto& info) {
  std::string name = std::filesystem::path(info.param).filename().string();
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(AppendRunsTest, RunsThatGoOnBecomeOne) {
  std::vector<CopyRun> runs;
  AppendRuns({{.bytes = 128}}, 0, 64, &runs);
  AppendRuns({{.bytes = 64}}, 128, 192, &runs);
  EXPECT_EQ(runs, (std::vector<CopyRun>{{.target = 64, .bytes = 192}}));
  AppendRuns({{.bytes = 64}}, 256, 256, &runs);
  EXPECT_EQ(runs.size(), 2u) << "64 bytes of the source are left out";
}

TEST(ExpertArenaTest, AnotherLayoutIsRefusedWithBoth) {
  Model model(KT_SOURCE_DIR "/tests/data/models/qwen3_moe");
  const BankLayout bank(model.stored, model.sets, {0, 32}, {});
  std::vector<uint8_t> arena(kArenaHeaderBytes + bank.bytes());
  EXPECT_FALSE(CheckArena("a", arena.data(), arena.size(), bank).ok()) << "no header";
  WriteArenaHeader(bank, arena.data());
  EXPECT_TRUE(CheckArena("a", arena.data(), arena.size(), bank).ok());
  EXPECT_FALSE(CheckArena("a", arena.data(), arena.size() - 1, bank).ok());
  const BankLayout half(model.stored, model.sets, {0, 16}, {});
  const std::string message = Message(CheckArena("a", arena.data(), arena.size(), half));
  EXPECT_NE(message.find("rows 0-32"), std::string::npos) << message;
  EXPECT_NE(message.find("rows 0-16"), std::string::npos) << message;
  ExpertSets other = model.sets;
  other[0] = {1, 2, 6};
  EXPECT_FALSE(
      CheckArena("a", arena.data(), arena.size(), BankLayout(model.stored, other, {0, 32}, {}))
          .ok());
}

}  // namespace
}  // namespace kt
