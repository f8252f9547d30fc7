// SPDX-License-Identifier: Apache-2.0
#include "worker/expert_layout.h"

#include <algorithm>

#include "common/weights/weight_summary.h"
#include "kernels/cpu/gemm/packed_matrix.h"

namespace kt {
namespace {

constexpr size_t kAlignment = 64;

size_t Align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
size_t Bytes(const PackedMatrix& m) { return Align(PackedBytes(m.n, m.k, m.format)); }
size_t BiasBytes(int n) { return Align(static_cast<size_t>(n) * sizeof(float)); }

// Columns [begin, end) of a packed matrix as one of their own. A slice that lies in one scale group
// has that as its only one, as a matrix packed from the slice would.
PackedMatrix Columns(const PackedMatrix& m, int begin, int end) {
  PackedMatrix out = m;
  out.k = end - begin;
  PackedFormat& f = out.format;
  if (f.lanes == 0) return out;
  f.origin = (m.format.origin + begin) % f.group;
  if (f.origin + out.k <= f.group) {
    f.origin = 0;
    f.group = out.k;
  }
  return out;
}

void AddRun(const CopyRun& run, std::vector<CopyRun>* runs) {
  if (run.bytes == 0 || run.rows == 0) return;
  if (!runs->empty() && run.rows == 1 && runs->back().rows == 1 &&
      runs->back().source + runs->back().bytes == run.source &&
      runs->back().target + runs->back().bytes == run.target) {
    runs->back().bytes += run.bytes;
  } else {
    runs->push_back(run);
  }
}

// Tiles of rows of the piece; they are adjacent in both.
void CutRows(const PackedMatrix& m, int first_row, int rows, size_t source, size_t target,
             std::vector<CopyRun>* runs) {
  const size_t tile_bytes = PackedTileBytes(m.k, m.format);
  AddRun({.source = source + static_cast<size_t>(first_row / kTileRows) * tile_bytes,
          .target = target,
          .bytes = static_cast<size_t>(Tiles(rows)) * tile_bytes},
         runs);
}

// In every tile: units of the codes (of both planes), then the groups of scales they fall in.
void CutColumns(const PackedMatrix& m, const PackedMatrix& piece, int first_column, size_t source,
                size_t target, std::vector<CopyRun>* runs) {
  const size_t source_tile = PackedTileBytes(m.k, m.format),
               target_tile = PackedTileBytes(piece.k, piece.format);
  const auto add = [&](size_t from, size_t to, size_t bytes) {
    AddRun({.source = source + from,
            .target = target + to,
            .bytes = bytes,
            .rows = static_cast<size_t>(Tiles(m.n)),
            .source_stride = source_tile,
            .target_stride = target_tile},
           runs);
  };
  const PackedCode code = m.format.code;
  const size_t first = static_cast<size_t>(first_column / UnitColumns(code)) * kUnitBytes;
  const size_t source_codes = PackedCodeBytes(m.k, code),
               target_codes = PackedCodeBytes(piece.k, code);
  const size_t planes = code == PackedCode::kBf16x2 ? 2 : 1;
  for (size_t plane = 0; plane < planes; ++plane) {
    add(plane * source_codes / planes + first, plane * target_codes / planes,
        target_codes / planes);
  }
  if (m.format.lanes == 0) return;
  const size_t group_bytes = static_cast<size_t>(m.format.lanes * ScaleBytes(m.format.scale));
  const auto first_group = static_cast<size_t>((m.format.origin + first_column) / m.format.group);
  add(source_codes + first_group * group_bytes, target_codes,
      static_cast<size_t>(PackedGroups(piece.k, piece.format)) * group_bytes);
}

// FNV-1a over values.
class Fingerprint {
 public:
  void Add(uint64_t value) {
    for (int i = 0; i < 8; ++i) hash_ = (hash_ ^ (value >> (8 * i) & 0xff)) * 0x100000001b3u;
  }
  void Add(const PackedMatrix& m) {
    for (int64_t v : {int64_t{m.n}, int64_t{m.k}, static_cast<int64_t>(m.format.code),
                      static_cast<int64_t>(m.format.scale), int64_t{m.format.lanes},
                      int64_t{m.format.group}, int64_t{m.format.origin}, int64_t{m.format.int8_x}})
      Add(static_cast<uint64_t>(v));
  }
  uint64_t value() const { return hash_; }

 private:
  uint64_t hash_ = 0xcbf29ce484222325u;
};

}  // namespace

IntermediateSlice Intersect(IntermediateSlice a, IntermediateSlice b) {
  const int begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

ExpertForm ExpertFormOf(std::string_view kt_method, bool exact) {
  const int bits = RoundedBits(kt_method);
  ExpertForm form{.exact = exact};
  if (bits != 0) form.int8_x = bits == 8 ? PackedCode::kInt8 : PackedCode::kInt4;
  return form;
}

size_t ExpertLayout::up_at() const { return Bytes(gate); }
size_t ExpertLayout::down_at() const { return up_at() + Bytes(up); }
size_t ExpertLayout::gate_bias_at() const { return down_at() + Bytes(down); }
size_t ExpertLayout::up_bias_at() const {
  return gate_bias_at() + (gate_bias ? BiasBytes(gate.n) : 0);
}
size_t ExpertLayout::down_bias_at() const { return up_bias_at() + (up_bias ? BiasBytes(up.n) : 0); }
size_t ExpertLayout::bytes() const { return down_bias_at() + (down_bias ? BiasBytes(down.n) : 0); }

ExpertWeights ExpertLayout::At(const uint8_t* base) const {
  const auto place = [base](PackedMatrix m, size_t at, bool bias, size_t bias_at) {
    m.data = base + at;
    m.bias = bias ? reinterpret_cast<const float*>(base + bias_at) : nullptr;
    return m;
  };
  return {place(gate, 0, gate_bias, gate_bias_at()), place(up, up_at(), up_bias, up_bias_at()),
          place(down, down_at(), down_bias, down_bias_at())};
}

ExpertLayout LayoutOf(const StoredExpert& e, IntermediateSlice slice, const ExpertForm& form) {
  const auto packed = [&](const MatrixView& view) {
    return PackedMatrix{.n = view.n,
                        .k = view.k,
                        .format = form.int8_x ? Int8XFormat(*form.int8_x, view.k)
                                              : PackedFormatOf(view, form.exact)};
  };
  return {.gate = packed(e.ffn.gate.view.Rows(slice.begin, slice.end)),
          .up = packed(e.ffn.up.view.Rows(slice.begin, slice.end)),
          .down = packed(e.ffn.down.view.Columns(slice.begin, slice.end)),
          .gate_bias = static_cast<bool>(e.gate_bias),
          .up_bias = static_cast<bool>(e.up_bias),
          .down_bias = e.down_bias && slice.begin == 0};
}

ExpertCut CutExpert(const ExpertLayout& whole, IntermediateSlice held, IntermediateSlice piece) {
  ExpertCut cut{.layout = whole, .runs = {}};
  if (piece == held) {
    cut.runs.push_back({.bytes = whole.bytes()});
    return cut;
  }
  const int first = piece.begin - held.begin, rows = piece.rows();
  ExpertLayout& out = cut.layout;
  out.gate.n = out.up.n = rows;
  out.down = Columns(whole.down, first, first + rows);
  out.down_bias = whole.down_bias && first == 0;
  CutRows(whole.gate, first, rows, 0, 0, &cut.runs);
  CutRows(whole.up, first, rows, whole.up_at(), out.up_at(), &cut.runs);
  CutColumns(whole.down, out.down, first, whole.down_at(), out.down_at(), &cut.runs);
  const size_t bias_first = static_cast<size_t>(first) * sizeof(float),
               bias_bytes = static_cast<size_t>(rows) * sizeof(float);
  if (whole.gate_bias)
    AddRun({whole.gate_bias_at() + bias_first, out.gate_bias_at(), bias_bytes}, &cut.runs);
  if (whole.up_bias)
    AddRun({whole.up_bias_at() + bias_first, out.up_bias_at(), bias_bytes}, &cut.runs);
  if (out.down_bias) {
    AddRun(
        {whole.down_bias_at(), out.down_bias_at(), static_cast<size_t>(out.down.n) * sizeof(float)},
        &cut.runs);
  }
  return cut;
}

void AppendRuns(const std::vector<CopyRun>& cut, size_t source, size_t target,
                std::vector<CopyRun>* runs) {
  for (CopyRun run : cut) {
    run.source += source;
    run.target += target;
    AddRun(run, runs);
  }
}

BankLayout::BankLayout(const StoredModel& stored, const ExpertSets& sets, IntermediateSlice slice,
                       const ExpertForm& form)
    : slice_(slice), places_(sets.size()) {
  Fingerprint fingerprint;
  fingerprint.Add(static_cast<uint64_t>(slice.begin));
  fingerprint.Add(static_cast<uint64_t>(slice.end));
  for (size_t l = 0; l < sets.size(); ++l) {
    const std::vector<StoredExpert>& experts = stored.layers[l].experts;
    places_[l].resize(experts.size());
    for (int e : sets[l]) {
      const ExpertLayout layout = LayoutOf(experts[static_cast<size_t>(e)], slice, form);
      places_[l][static_cast<size_t>(e)] = Place{bytes_, layout};
      for (uint64_t v : {l, static_cast<size_t>(e), bytes_, layout.bytes()}) fingerprint.Add(v);
      for (const PackedMatrix* m : {&layout.gate, &layout.up, &layout.down}) fingerprint.Add(*m);
      bytes_ += layout.bytes();
    }
  }
  fingerprint_ = fingerprint.value();
}

const BankLayout::Place* BankLayout::Find(size_t layer, int expert) const {
  const std::optional<Place>& place = places_[layer][static_cast<size_t>(expert)];
  return place ? &*place : nullptr;
}

}  // namespace kt
