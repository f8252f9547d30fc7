// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/gemm/gemm.h"

#include <algorithm>

#include "common/base/status.h"
#include "kernels/cpu/gemm/gemm_isa.h"

namespace kt {
namespace {

template <PackedCode kCode, ProductFn kFew>
void FewOrTiles(const ProductArgs& args, int tile_begin, int tile_end) noexcept {
  (args.tokens > kFewTokens ? OneDnnProduct(OneDnnPanel::kBf16, kCode) : kFew)(args, tile_begin,
                                                                               tile_end);
}
constexpr ProductFn kAmxBf16 = &FewOrTiles<PackedCode::kBf16, &avx512bf16::ProductBf16>;

#define KT_PRODUCTS(isa)                                                           \
  {                                                                                \
    &isa::ProductBf16, &isa::ProductBf16, &isa::ProductFp8E4m3, &isa::ProductInt8, \
        &isa::ProductInt4, &isa::ProductFp4E2m1                                    \
  }
constexpr GemmKernels kRows[] = {
    {Isa::kScalar, KT_PRODUCTS(scalar), KT_PRODUCTS(scalar)},
    {Isa::kAvx2, KT_PRODUCTS(avx2), KT_PRODUCTS(avx2)},
    {Isa::kAvx512f, KT_PRODUCTS(avx512f), KT_PRODUCTS(avx512f)},
    {Isa::kAvx512Bf16, KT_PRODUCTS(avx512bf16), KT_PRODUCTS(avx512f)},
    {Isa::kAmx,
     {kAmxBf16, kAmxBf16, &FewOrTiles<PackedCode::kFp8E4m3, &avx512bf16::ProductFp8E4m3>,
      &FewOrTiles<PackedCode::kInt8, &avx512bf16::ProductInt8>,
      &FewOrTiles<PackedCode::kInt4, &avx512bf16::ProductInt4>,
      &FewOrTiles<PackedCode::kFp4E2m1, &avx512bf16::ProductFp4E2m1>},
     KT_PRODUCTS(avx512f)},
};
#undef KT_PRODUCTS

constexpr int kRunTilesMin = 4;        // shorter runs waste the register blocks
constexpr int kTasksPerThread = 4;     // evens out threads that other work slows down
constexpr int kTokensPerTaskMin = 48;  // each task reads its weights once more

constexpr int kBlockTokens = 256;  // their x and y stay in L2 from one block of k to the next

PackedScale ScaleOf(const PackedFormat& f) {
  if (f.lanes == 0) return PackedScale::kOne;
  return f.scale == ScaleType::kF32    ? PackedScale::kF32
         : f.scale == ScaleType::kBf16 ? PackedScale::kBf16
                                       : PackedScale::kE8m0;
}

}  // namespace

absl::Status GemmReady(Isa isa) {
  if (!IsaSupported(isa)) return Unimplemented("this CPU has no {}", IsaName(isa));
  return isa == Isa::kAmx ? OneDnnReady(OneDnnPanel::kBf16) : absl::OkStatus();
}

const GemmKernels& SelectGemm(Isa isa) { return kRows[static_cast<int>(isa)]; }

GemmKernels OneDnnGemm(OneDnnPanel panel) {
  GemmKernels row{panel == OneDnnPanel::kF32 ? Isa::kAvx2 : Isa::kAvx512Bf16};
  for (int code = 0; code < kPackedCodes; ++code) {
    row.bf16_x[code] = OneDnnProduct(panel, static_cast<PackedCode>(code));
    row.f32_x[code] = panel == OneDnnPanel::kF32 ? row.bf16_x[code] : nullptr;
  }
  return row;
}

void Gemm(const GemmKernels& kernels, bool x_is_bf16, const GemmArgs& args, int tile_begin,
          int tile_end) noexcept {
  const PackedMatrix& w = args.w;
  const PackedFormat& f = w.format;
  const ProductFn product = (x_is_bf16 ? kernels.bf16_x : kernels.f32_x)[static_cast<int>(f.code)];
  const size_t x_bytes = x_is_bf16 ? sizeof(bf16) : sizeof(float);
  const size_t code_bytes = PackedCodeBytes(w.k, f.code);
  ProductArgs p{.x = args.x,
                .x_is_bf16 = x_is_bf16,
                .x_stride = args.x_stride,
                .tokens = args.tokens,
                .w = w.data,
                .tile_bytes = static_cast<int64_t>(PackedTileBytes(w.k, f)),
                .n = w.n,
                .k = w.k,
                .scales = w.data + code_bytes,
                .scale = ScaleOf(f),
                .lanes = f.lanes,
                .group = f.lanes == 0 ? w.k : f.group,
                .origin = f.origin,
                .y = args.y,
                .y_stride = args.y_stride,
                .add = false};
  if (f.code == PackedCode::kBf16 || f.code == PackedCode::kBf16x2) {
    product(p, tile_begin, tile_end);
    if (f.code == PackedCode::kBf16) return;
    p.w += code_bytes / 2;
    p.add = true;
    return product(p, tile_begin, tile_end);
  }
  for (int token = 0; token < args.tokens; token += kBlockTokens) {
    p.x = static_cast<const uint8_t*>(args.x) + token * args.x_stride * x_bytes;
    p.tokens = std::min(kBlockTokens, args.tokens - token);
    p.y = args.y + token * args.y_stride;
    product(p, tile_begin, tile_end);
  }
}

void LinearParallel(const GemmKernels& kernels, bool x_is_bf16, const GemmArgs& args,
                    Parallel& parallel) noexcept {
  const int tiles = Tiles(args.w.n), threads = parallel.threads();
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
    Gemm(kernels, x_is_bf16, part, split(tiles, tile_part, tile_parts),
         split(tiles, tile_part + 1, tile_parts));
  });
}

}  // namespace kt
