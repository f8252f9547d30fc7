// SPDX-License-Identifier: Apache-2.0
// That products are right and invariant, gemm_test shows; here: what they cost the process, and the
// form of panels.
#include "kernels/cpu/onednn/onednn_gemm.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/gemm/testing/kernel_testing.h"
#include "kernels/cpu/gemm/testing/random_matrix.h"

namespace kt {
namespace {

bool Mapped(const char* library) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find(library) != std::string::npos) return true;
  }
  return false;
}

long ThreadsOfProcess() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST(OneDnnTest, ALibraryIsLoadedWhenFirstAskedForAndStartsNoThreads) {
  EXPECT_FALSE(Mapped("libdnnl")) << "the program is linked with it";
  EXPECT_FALSE(Mapped("libgomp"));
  if (!IsaSupported(Isa::kAvx2)) GTEST_SKIP() << "NOT TESTED: the CPU lacks AVX2";
  const long threads = ThreadsOfProcess();  // an emulator has one of its own
  ASSERT_TRUE(OneDnnReady(OneDnnPanel::kF32).ok()) << OneDnnReady(OneDnnPanel::kF32);
  EXPECT_TRUE(Mapped("libdnnl"));

  std::mt19937 rng(1);
  const RandomMatrix w(rng, kMatrixSpecs[0], 512, 1024);
  const PackedCopy packed(w.view(), true);
  const std::vector<bf16> x = RandomBf16(rng, 256 * 1024);
  const auto multiply = [&] {
    std::vector<float> y(256 * 512);
    Gemm(OneDnnGemm(OneDnnPanel::kF32), true, {x.data(), 1024, 256, packed.matrix, y.data(), 512},
         0, Tiles(512));
    return y;
  };
  const std::vector<float> here = multiply();
  EXPECT_EQ(ThreadsOfProcess(), threads);
  std::vector<float> there;
  std::thread([&] {
    there = multiply();
    EXPECT_EQ(ThreadsOfProcess(), threads + 1);
  }).join();
  EXPECT_EQ(here, there);
}

TEST(OneDnnTest, Bf16PanelsRunOrSayWhatTheCpuLacks) {
  const absl::Status status = OneDnnReady(OneDnnPanel::kBf16);
  EXPECT_EQ(status.ok(), IsaSupported(Isa::kAvx512Bf16)) << status;
  if (!status.ok()) {
    EXPECT_NE(status.message().find("avx512bf16"), absl::string_view::npos) << status;
  }
}

}  // namespace
}  // namespace kt
