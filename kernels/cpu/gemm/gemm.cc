// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/gemm.h"

#include <algorithm>

#include "kernels/cpu/gemm/gemm_isa.h"

namespace kt {
namespace {

constexpr GemmKernels kRows[] = {
    {Isa::kScalar, &scalar::GemmBf16, &scalar::GemmF32},
    {Isa::kAvx2, &avx2::GemmBf16, &avx2::GemmF32},
    {Isa::kAvx512f, &avx512f::GemmBf16, &avx512f::GemmF32},
    {Isa::kAvx512Bf16, &avx512bf16::GemmBf16, &avx512f::GemmF32},
};

constexpr int kRunTilesMin = 4;        // shorter runs waste the register blocks
constexpr int kTasksPerThread = 4;     // evens out threads that other work slows down
constexpr int kTokensPerTaskMin = 48;  // each task reads its weights once more

}  // namespace

const GemmKernels& SelectGemm(Isa isa) { return kRows[static_cast<int>(isa)]; }

void LinearParallel(const GemmKernels& kernels, bool x_is_bf16, const GemmArgs& args,
                    Parallel& parallel) noexcept {
  const GemmFn gemm = x_is_bf16 ? kernels.bf16_x : kernels.f32_x;
  const int tiles = Tiles(args.n), threads = parallel.threads();
  const int tasks_wanted = threads == 1 ? 1 : threads * kTasksPerThread;
  const int tile_parts = std::clamp(tiles / kRunTilesMin, 1, tasks_wanted);
  const int token_parts =
      std::clamp(args.tokens / kTokensPerTaskMin, 1, std::max(1, tasks_wanted / tile_parts));
  parallel.Run(tile_parts * token_parts, [&](int task, int) {
    const int tile_part = task % tile_parts, token_part = task / tile_parts;
    const auto split = [](int total, int part, int parts) {
      return static_cast<int>(int64_t{total} * part / parts);
    };
    const int token = split(args.tokens, token_part, token_parts);
    GemmArgs part = args;
    part.tokens = split(args.tokens, token_part + 1, token_parts) - token;
    const size_t x_bytes = x_is_bf16 ? sizeof(bf16) : sizeof(float);
    part.x = static_cast<const char*>(args.x) + token * args.x_stride * x_bytes;
    part.y = args.y + token * args.y_stride;
    gemm(part, split(tiles, tile_part, tile_parts), split(tiles, tile_part + 1, tile_parts));
  });
}

}  // namespace kt
