// SPDX-License-Identifier: Apache-2.0
#include "worker/kernel_choice.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "common/base/aligned_buffer.h"
#include "common/base/status.h"
#include "worker/self_check.h"

namespace kt {
namespace {

constexpr int kColumns = 256;  // of y, as a task of the experts has

// Small numbers in every format, none of them NaN.
AlignedBuffer MadeUpWeights(const PackedMatrix& w) {
  AlignedBuffer bytes(PackedBytes(w.n, w.k, w.format));
  std::mt19937 random(1);
  for (size_t i = 0; i < bytes.size(); ++i) bytes.data()[i] = static_cast<uint8_t>(random() & 0x3b);
  return bytes;
}

// Milliseconds of the fastest of a few products.
double Measure(Isa isa, const GemmArgs& args) {
  constexpr int kRuns = 4;  // the first one makes oneDNN's kernels
  double best = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    const auto start = std::chrono::steady_clock::now();
    Gemm(SelectGemm(isa), true, args, 0, Tiles(args.w.n));
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  return best;
}

}  // namespace

absl::StatusOr<KernelChoice> FasterKernels(Isa tiles, Isa vectors, const PackedMatrix& like) {
  PackedMatrix w{.n = kColumns, .k = like.k, .format = like.format};
  const AlignedBuffer weights = MadeUpWeights(w);
  w.data = weights.data();
  std::vector<bf16> x(static_cast<size_t>(kMeasuredRows) * static_cast<size_t>(w.k));
  FixedInput(1, static_cast<int64_t>(x.size()), true, x.data());
  std::vector<float> by_tiles(size_t{kMeasuredRows} * kColumns), by_vectors(by_tiles.size());
  GemmArgs args{x.data(), w.k, kMeasuredRows, w, by_tiles.data(), kColumns};
  const double tiles_ms = Measure(tiles, args);
  args.y = by_vectors.data();
  const double vectors_ms = Measure(vectors, args);
  const double error =
      RelativeError(by_tiles.data(), by_vectors.data(), static_cast<int64_t>(by_tiles.size()));
  if (error > SelfCheckBound(true)) {
    return DataLoss("{}: a product differs from that of {} by {:.3g} of the largest value",
                    IsaName(tiles), IsaName(vectors), error);
  }
  return KernelChoice{
      tiles_ms < vectors_ms ? tiles : vectors,
      fmt::format("{} rows x {} x {}: {} {:.2f} ms, {} {:.2f} ms", kMeasuredRows, kColumns, w.k,
                  IsaName(tiles), tiles_ms, IsaName(vectors), vectors_ms)};
}

absl::StatusOr<KernelChoice> ChooseKernels(const KernelOptions& o) {
  const bool forced = o.selected == Isa::kAmx;
  if (forced && o.deterministic) {
    return InvalidArgument(
        "KT_FORCE_ISA=amx: products of few tokens and of many have different bits with it; add "
        "--deterministic off or unset it");
  }
  const KernelChoice as_selected{o.selected, ""};
  if (!forced && (o.deterministic || IsaForced() || !IsaSupported(Isa::kAmx))) return as_selected;
  if (!o.bf16 || o.like.format.int8_x) return as_selected;  // tiles multiply bf16 x alone

  absl::Status ready = GemmReady(Isa::kAmx);
  absl::StatusOr<KernelChoice> choice =
      ready.ok() ? FasterKernels(Isa::kAmx, Isa::kAvx512Bf16, o.like) : ready;
  if (forced && choice.ok()) choice->isa = Isa::kAmx;
  if (choice.ok() || forced) return choice;
  return KernelChoice{o.selected, Message(choice.status())};
}

std::string Describe(const KernelChoice& choice) {
  return choice.reason.empty() ? IsaName(choice.isa)
                               : fmt::format("{} ({})", IsaName(choice.isa), choice.reason);
}

}  // namespace kt
