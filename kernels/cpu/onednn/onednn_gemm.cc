// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/onednn/onednn_gemm.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "common/base/aligned_buffer.h"
#include "common/base/status.h"
#include "common/base/weight_matrix.h"
#include "kernels/cpu/features/cpu_features.h"
#include "kernels/cpu/gemm/gemm_isa.h"
#include "kernels/cpu/gemm/packed_matrix.h"
#include "kernels/cpu/onednn/onednn_library.h"
#include "kernels/cpu/onednn/panel_rows.h"
#include "kernels/cpu/simd/dispatch.h"

namespace kt {

KT_DEFINE_ISA_DISPATCH(WidenRows, WidenRowsArgs)
KT_DEFINE_ISA_DISPATCH(FoldSums, FoldSumsArgs)

namespace {

constexpr int kPanelTiles = 16;                      // 256 columns of y
constexpr int kColumnsMax = 512, kColumnsUnit = 32;  // of a panel: a step of AMX takes 32
constexpr int kTilesUnit = 4;                        // widths of panels: 64 columns of y is best
constexpr int kStepBytes = 64;

// How a panel lies in memory: oneDNN's form that its kernels read without a copy. A step holds 16
// rows of W for 1 (fp32) or 2 (bf16) columns.
struct F32 {
  static constexpr OneDnnPanel kPanel = OneDnnPanel::kF32;
  static constexpr Isa kIsa = Isa::kAvx2;
  // Whole blocks of 6 (AVX2) and 8 (AVX-512): the rows that oneDNN has left over from its blocks it
  // sums in another order.
  static constexpr int kRows = 24;
  static constexpr int kStepColumns = 1, kElementBytes = 4;
  static constexpr dnnl_data_type_t kType = dnnl_f32;
  static constexpr dnnl_format_tag_t kTag = dnnl_ab;  // [columns][n]
  static int TilesSideBySide(int tiles) { return tiles; }
  static constexpr DecodeFn kDecode[] = {&avx2::DecodeBf16,    nullptr,
                                         &avx2::DecodeFp8E4m3, &avx2::DecodeInt8,
                                         &avx2::DecodeInt4,    &avx2::DecodeFp4E2m1};
};
struct Bf16 {
  static constexpr OneDnnPanel kPanel = OneDnnPanel::kBf16;
  static constexpr Isa kIsa = Isa::kAvx512Bf16;
  static constexpr int kRows = 32;  // two tiles of AMX
  static constexpr int kStepColumns = 2, kElementBytes = 2;
  static constexpr dnnl_data_type_t kType = dnnl_bf16;
  static constexpr dnnl_format_tag_t kTag = dnnl_BA16a64b2a;  // [n / 64][columns / 2][64][2]
  static int TilesSideBySide(int) { return kTilesUnit; }
  static constexpr DecodeFn kDecode[] = {&avx512bf16::DecodeBf16,    nullptr,
                                         &avx512bf16::DecodeFp8E4m3, &avx512bf16::DecodeInt8,
                                         &avx512bf16::DecodeInt4,    &avx512bf16::DecodeFp4E2m1};
};

// sums [rows, n] = x [rows, k] panel [k, n] in one thread, for one shape.
class Primitive {
 public:
  Primitive() = default;
  Primitive(const Primitive&) = delete;
  ~Primitive() {
    if (primitive_ == nullptr) return;
    library_->primitive_destroy(primitive_);
    for (dnnl_exec_arg_t& arg : args_) library_->memory_destroy(arg.memory);
  }

  bool made() const { return primitive_ != nullptr; }

  absl::Status Make(const OneDnnLibrary& library, dnnl_data_type_t type, dnnl_format_tag_t tag,
                    int rows, int n, int k, void* x, void* panel, void* sums) {
    library_ = &library;
    library.omp_set_num_threads(1);
    dnnl_memory_desc_t mds[3];
    const dnnl_dims_t dims[3] = {{rows, k}, {k, n}, {rows, n}};
    const dnnl_data_type_t types[3] = {type, type, dnnl_f32};
    const dnnl_format_tag_t tags[3] = {dnnl_ab, tag, dnnl_ab};
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t desc;
    for (int i = 0; i < 3; ++i) {
      if (library.memory_desc_init_by_tag(&mds[i], 2, dims[i], types[i], tags[i]) != dnnl_success)
        return Internal("oneDNN refuses a matrix of {}x{}", dims[i][0], dims[i][1]);
    }
    if (library.matmul_desc_init(&matmul, &mds[0], &mds[1], nullptr, &mds[2]) != dnnl_success ||
        library.primitive_desc_create(&desc, &matmul, nullptr, library.engine, nullptr) !=
            dnnl_success) {
      return Unimplemented("oneDNN does not multiply {} here",
                           type == dnnl_bf16 ? "bf16: the CPU lacks AVX-512" : "fp32");
    }
    const char* name = "";
    library.primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name);
    const bool reference = std::string_view(name).substr(0, 3) == "ref";
    const dnnl_status_t status =
        reference ? dnnl_unimplemented : library.primitive_create(&primitive_, desc);
    library.primitive_desc_destroy(desc);
    if (reference) return Unimplemented("oneDNN has plain loops alone for {}x{}x{}", rows, n, k);
    if (status != dnnl_success)
      return ResourceExhausted("oneDNN: no kernel for {}x{}x{} (status {})", rows, n, k, status);
    const int names[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    void* const data[3] = {x, panel, sums};
    for (int i = 0; i < 3; ++i) {
      args_[i].arg = names[i];
      if (library.memory_create(&args_[i].memory, &mds[i], library.engine, data[i]) !=
          dnnl_success) {
        return ResourceExhausted("oneDNN: no memory object for {}x{}x{}", rows, n, k);
      }
    }
    return absl::OkStatus();
  }

  bool Run(dnnl_stream_t stream) const {
    return library_->primitive_execute(primitive_, stream, 3, args_.data()) == dnnl_success &&
           library_->stream_wait(stream) == dnnl_success;
  }

 private:
  const OneDnnLibrary* library_ = nullptr;
  dnnl_primitive_t primitive_ = nullptr;
  std::array<dnnl_exec_arg_t, 3> args_{};
};

[[noreturn]] void Abort(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", Message(status).c_str());
  std::abort();
}

// What a thread keeps for one kind of panel.
template <typename P>
class Workspace {
 public:
  static Workspace& OfThisThread() {
    thread_local Workspace workspace;
    return workspace;
  }
  ~Workspace() {
    if (stream_ != nullptr) library_->stream_destroy(stream_);
  }

  char* x() const { return x_.As<char>(); }
  char* panel() const { return panel_.As<char>(); }
  float* sums() const { return sums_.As<float>(); }
  float* scales() const { return scales_.As<float>(); }

  // For n = 64, 128, ... 256 and k = 32, 64, ... 512.
  absl::StatusOr<const Primitive*> Get(int n, int k) {
    Primitive& p = primitives_[n / (kTilesUnit * kTileRows) - 1][k / kColumnsUnit - 1];
    if (p.made()) return &p;
    KT_RETURN_IF_ERROR(Open());
    KT_RETURN_IF_ERROR(p.Make(*library_, P::kType, P::kTag, P::kRows, n, k, x(), panel(), sums()));
    return &p;
  }

  void Multiply(const Primitive& primitive) const {
    if (!primitive.Run(stream_)) Abort(Internal("oneDNN: a product failed"));
  }

 private:
  absl::Status Open() {
    if (stream_ != nullptr) return absl::OkStatus();
    KT_ASSIGN_OR_RETURN(library_, OneDnnLibrary::Get());
    constexpr size_t kN = kPanelTiles * kTileRows;
    x_ = AlignedBuffer(size_t{P::kRows} * kColumnsMax * P::kElementBytes);
    panel_ = AlignedBuffer(kN * kColumnsMax * P::kElementBytes);
    sums_ = AlignedBuffer(P::kRows * kN * sizeof(float));
    scales_ = AlignedBuffer(kN * sizeof(float));
    if (library_->stream_create(&stream_, library_->engine, dnnl_stream_default_flags) !=
        dnnl_success) {
      return ResourceExhausted("oneDNN: no stream");
    }
    return absl::OkStatus();
  }

  const OneDnnLibrary* library_ = nullptr;
  AlignedBuffer x_, panel_, sums_, scales_;
  dnnl_stream_t stream_ = nullptr;
  Primitive primitives_[kPanelTiles / kTilesUnit][kColumnsMax / kColumnsUnit];
};

int RoundUp(int value, int unit) { return (value + unit - 1) / unit * unit; }

// The scales of a group for all rows of some tiles.
void ExpandScales(const ProductArgs& args, int tile, int tiles, int group, float* out) {
  const ScaleType type = args.scale == PackedScale::kF32    ? ScaleType::kF32
                         : args.scale == PackedScale::kBf16 ? ScaleType::kBf16
                         : args.scale == PackedScale::kE8m0 ? ScaleType::kE8m0
                                                            : ScaleType::kNone;
  const int bytes = ScaleBytes(type);
  for (int t = 0; t < tiles; ++t, out += kTileRows) {
    const uint8_t* scales = args.scales + (tile + t) * args.tile_bytes;
    for (int row = 0; row < kTileRows; ++row) {
      const int at = args.lanes == 16 ? group * kTileRows + row : group;
      out[row] = args.lanes == 1 && row > 0 ? out[0] : ScaleValue(type, scales + at * bytes);
    }
  }
}

template <typename P>
void FillRows(const ProductArgs& args, int row, int rows, int begin, int columns, int columns_out,
              char* out) {
  const int64_t first = row * args.x_stride + begin;
  if (P::kPanel == OneDnnPanel::kF32 && args.x_is_bf16) {
    WidenRows(P::kIsa, {static_cast<const bf16*>(args.x) + first, args.x_stride, rows, columns,
                        columns_out, reinterpret_cast<float*>(out)});
  } else {
    constexpr int kBytes = P::kElementBytes;
    for (int r = 0; r < rows; ++r) {
      char* to = out + int64_t{r} * columns_out * kBytes;
      std::memcpy(to, static_cast<const char*>(args.x) + (first + r * args.x_stride) * kBytes,
                  size_t(columns) * kBytes);
      std::memset(to + columns * kBytes, 0, size_t(columns_out - columns) * kBytes);
    }
  }
  const size_t row_bytes = size_t(columns_out) * P::kElementBytes;
  std::memset(out + rows * row_bytes, 0, (P::kRows - rows) * row_bytes);
}

template <typename P, PackedCode kCode>
void Product(const ProductArgs& args, int tile_begin, int tile_end) noexcept {
  constexpr bool kScaled = kCode != PackedCode::kBf16;
  const int unit_columns = UnitColumns(kCode);
  Workspace<P>& workspace = Workspace<P>::OfThisThread();
  for (int tile = tile_begin; tile < tile_end; tile += kPanelTiles) {
    const int tiles = std::min(kPanelTiles, tile_end - tile);
    const int panel_tiles = RoundUp(tiles, kTilesUnit);
    const int side_by_side = P::TilesSideBySide(panel_tiles);
    const int64_t step_bytes = int64_t{side_by_side} * kStepBytes;
    const int n = std::min(args.n - tile * kTileRows, tiles * kTileRows);
    for (int begin = 0, end; begin < args.k; begin = end) {
      const int group = kScaled ? (args.origin + begin) / args.group : 0;
      const int64_t group_end = kScaled ? int64_t{args.group} * (group + 1) - args.origin : args.k;
      end = static_cast<int>(
          std::min<int64_t>({begin + (kScaled ? kScaledColumns : kColumnsMax), group_end, args.k}));
      const int columns = end - begin, panel_columns = RoundUp(columns, kColumnsUnit);
      const auto primitive = workspace.Get(panel_tiles * kTileRows, panel_columns);
      if (!primitive.ok()) Abort(primitive.status());

      const int units = (columns + unit_columns - 1) / unit_columns;
      const int steps = panel_columns / P::kStepColumns;
      const int decoded = units * unit_columns / P::kStepColumns;
      for (int t = 0; t < panel_tiles; ++t) {
        uint8_t* out = reinterpret_cast<uint8_t*>(workspace.panel()) +
                       t / side_by_side * steps * step_bytes + t % side_by_side * kStepBytes;
        if (t < tiles) {
          P::kDecode[static_cast<int>(kCode)](
              args.w + (tile + t) * args.tile_bytes + begin / unit_columns * kUnitBytes, units, out,
              step_bytes);
        }
        for (int s = t < tiles ? decoded : 0; s < steps; ++s)
          std::memset(out + s * step_bytes, 0, kStepBytes);
      }
      ExpandScales(args, tile, tiles, group, workspace.scales());

      for (int row = 0; row < args.tokens; row += P::kRows) {
        const int rows = std::min(P::kRows, args.tokens - row);
        FillRows<P>(args, row, rows, begin, columns, panel_columns, workspace.x());
        workspace.Multiply(**primitive);
        FoldSums(P::kIsa, {workspace.sums(), panel_tiles * kTileRows, workspace.scales(), rows, n,
                           begin > 0 || args.add, args.y + row * args.y_stride + tile * kTileRows,
                           args.y_stride});
      }
    }
  }
}

template <typename P>
ProductFn ProductOf(PackedCode code) {
  switch (code) {
    case PackedCode::kBf16:
    case PackedCode::kBf16x2:
      return &Product<P, PackedCode::kBf16>;
    case PackedCode::kFp8E4m3:
      return &Product<P, PackedCode::kFp8E4m3>;
    case PackedCode::kInt8:
      return &Product<P, PackedCode::kInt8>;
    case PackedCode::kInt4:
      return &Product<P, PackedCode::kInt4>;
    case PackedCode::kFp4E2m1:
      return &Product<P, PackedCode::kFp4E2m1>;
  }
  return nullptr;
}

template <typename P>
absl::Status Ready() {
  if (!IsaSupported(P::kIsa))
    return Unimplemented("oneDNN: {} panels need a CPU with the kernels {}",
                         P::kType == dnnl_bf16 ? "bf16" : "fp32", IsaName(P::kIsa));
  return Workspace<P>::OfThisThread().Get(kPanelTiles * kTileRows, kScaledColumns).status();
}

}  // namespace

absl::Status OneDnnReady(OneDnnPanel panel) {
  return panel == OneDnnPanel::kF32 ? Ready<F32>() : Ready<Bf16>();
}

ProductFn OneDnnProduct(OneDnnPanel panel, PackedCode code) {
  return panel == OneDnnPanel::kF32 ? ProductOf<F32>(code) : ProductOf<Bf16>(code);
}

}  // namespace kt
