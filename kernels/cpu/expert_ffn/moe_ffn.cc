// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/expert_ffn/moe_ffn.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace kt {
namespace {

// A task computes up to kRunTiles x 16 columns for all rows of one expert, kRowBlock rows at a
// time.
constexpr int kRunTiles = 16, kRunTilesMin = 4;
constexpr int kRowBlock = 96;
constexpr int kTasksPerThread = 6;
constexpr int kRowsPerRead = 6;  // so many rows cost about as much as reading the weights once

// Smaller copies and sums are done by the caller: waking threads would take longer.
constexpr int64_t kElementsPerTask = 1 << 15;

// f(begin, end) over [0, count), in parallel if that many elements are worth it.
template <typename F>
void ForRanges(Parallel& parallel, int count, int64_t elements_each, F f) {
  const int64_t parts_max = std::min(count, parallel.threads() * kTasksPerThread);
  const int parts = static_cast<int>(std::min(parts_max, count * elements_each / kElementsPerTask));
  if (parts <= 1 || parallel.threads() == 1) return f(0, count);
  parallel.Run(parts, [&](int part, int) {
    f(static_cast<int>(int64_t{count} * part / parts),
      static_cast<int>(int64_t{count} * (part + 1) / parts));
  });
}

struct TileTask {
  int32_t expert, tile_begin, tile_end;
};

// y [rows, n] += bias [n] where there is one.
void AddBias(const float* bias, float* y, int rows, int n) {
  if (bias == nullptr) return;
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < n; ++i) y[size_t(r) * n + i] += bias[i];
  }
}

// Rows [tile_begin * 16, tile_end * 16) of a matrix as one of its own.
PackedMatrix TileRange(const PackedMatrix& w, int tile_begin, int tile_end) {
  PackedMatrix part = w;
  part.data += tile_begin * PackedTileBytes(w.k, w.format);
  if (part.bias != nullptr) part.bias += tile_begin * kTileRows;
  part.n = std::min(w.n, tile_end * kTileRows) - tile_begin * kTileRows;
  return part;
}

}  // namespace

// All of it is sized for a full pass; "rows" are (token, slot) pairs, grouped by expert.
struct MoeFfn::Scratch {
  uint8_t* x;  // [rows, hidden] in the type of MoeArgs::x; or codes of x, then of the activation
  float* x_scales;        // [rows], of codes
  int32_t* x_sums;        // [rows], of codes
  uint8_t* activation;    // [rows, intermediate] in the same type
  float* down;            // [rows, hidden]
  float* gate_up;         // [threads][2][kRowBlock][kRunTiles * 16]
  int32_t* row_of_slot;   // [tokens, top_k], -1: contributes nothing
  int32_t* token_of_row;  // [rows]
  int32_t* first_row;     // [num_experts]
  int32_t* row_count;     // [num_experts]
  int32_t* active;        // [num_experts]: experts with rows, most rows first
  TileTask* tasks;
  size_t bytes;
};

struct MoeFfn::Pass {
  const MoeArgs& args;
  const Scratch scratch;
  Parallel& parallel;
  int token, tokens;
  size_t element_bytes;  // of x and activation
  int rows = 0, active = 0;
  std::optional<PackedCode> int8_x;  // x is rounded for weights of this code

  Int8Rows Codes(int first_row, int k) const {
    const Int8Rows all{reinterpret_cast<int8_t*>(scratch.x), Int8RowBytes(k), scratch.x_scales,
                       scratch.x_sums};
    return all.From(first_row);
  }
};

MoeFfn::MoeFfn(MoeShape shape, Isa isa, int tokens_max_per_pass)
    : shape_(shape),
      gemm_(SelectGemm(isa)),
      int8_gemm_(SelectInt8Gemm(isa)),
      isa_(isa),
      tokens_max_per_pass_(tokens_max_per_pass) {}

MoeFfn::Scratch MoeFfn::Layout(uint8_t* base, int threads) const {
  Scratch s{};
  const size_t rows = size_t{1} * tokens_max_per_pass_ * shape_.top_k;
  const size_t experts = shape_.num_experts;
  const size_t task_tiles = std::max(Tiles(shape_.intermediate), Tiles(shape_.hidden));
  const auto take = [&]<typename T>(T*& field, size_t count) {
    field = reinterpret_cast<T*>(base + s.bytes);
    s.bytes += (count * sizeof(T) + 63) / 64 * 64;
  };
  const int64_t code_bytes = Int8RowBytes(std::max(shape_.hidden, shape_.intermediate));
  take(s.x, rows * std::max<size_t>(shape_.hidden * sizeof(float), code_bytes));
  take(s.x_scales, rows);
  take(s.x_sums, rows);
  take(s.activation, rows * shape_.intermediate * sizeof(float));
  take(s.down, rows * shape_.hidden);
  take(s.gate_up, size_t{2} * threads * kRowBlock * kRunTiles * kTileRows);
  take(s.row_of_slot, rows);
  take(s.token_of_row, rows);
  take(s.first_row, experts);
  take(s.row_count, experts);
  take(s.active, experts);
  take(s.tasks, experts * ((task_tiles + kRunTilesMin - 1) / kRunTilesMin));
  return s;
}

size_t MoeFfn::ScratchBytes(int threads) const { return Layout(nullptr, threads).bytes; }

void MoeFfn::Run(const MoeArgs& args, uint8_t* scratch, Parallel& parallel) const noexcept {
  const Scratch layout = Layout(scratch, parallel.threads());
  for (int token = 0; token < args.tokens; token += tokens_max_per_pass_) {
    Pass pass{args,
              layout,
              parallel,
              token,
              std::min(tokens_max_per_pass_, args.tokens - token),
              args.x_is_bf16 ? sizeof(bf16) : sizeof(float)};
    GroupByExpert(pass);
    Gather(pass);
    GateUp(pass);
    QuantizeActivation(pass);
    Down(pass);
    Combine(pass);
  }
}

void MoeFfn::GroupByExpert(Pass& pass) const {
  const Scratch& s = pass.scratch;
  const int slots = pass.tokens * shape_.top_k;
  const int32_t* ids = pass.args.ids + int64_t{pass.token} * shape_.top_k;
  const auto held = [&](int32_t id) {
    return id >= 0 && id < shape_.num_experts && pass.args.experts[id].gate.data != nullptr;
  };
  std::fill(s.row_count, s.row_count + shape_.num_experts, 0);
  for (int i = 0; i < slots; ++i) {
    if (held(ids[i])) ++s.row_count[ids[i]];
  }
  for (int e = 0; e < shape_.num_experts; ++e) {
    s.first_row[e] = pass.rows;
    pass.rows += s.row_count[e];
    if (s.row_count[e] > 0) s.active[pass.active++] = e;
    s.row_count[e] = 0;
  }
  for (int i = 0; i < slots; ++i) {
    s.row_of_slot[i] = held(ids[i]) ? s.first_row[ids[i]] + s.row_count[ids[i]]++ : -1;
    if (s.row_of_slot[i] >= 0) s.token_of_row[s.row_of_slot[i]] = pass.token + i / shape_.top_k;
  }
  if (pass.active > 0) {
    const PackedFormat& format = pass.args.experts[s.active[0]].gate.format;
    if (format.int8_x) pass.int8_x = format.code;
  }
  // Long tasks first evens out the end of a parallel run.
  std::sort(s.active, s.active + pass.active,
            [&](int32_t a, int32_t b) { return s.row_count[a] > s.row_count[b]; });
}

void MoeFfn::Gather(const Pass& pass) const {
  const size_t row_bytes = shape_.hidden * pass.element_bytes;
  ForRanges(pass.parallel, pass.rows, shape_.hidden, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) {
      const uint8_t* x =
          static_cast<const uint8_t*>(pass.args.x) + pass.scratch.token_of_row[row] * row_bytes;
      if (pass.int8_x) {
        QuantizeRows(*pass.int8_x, pass.args.x_is_bf16, x, shape_.hidden, 1, shape_.hidden,
                     pass.Codes(row, shape_.hidden));
      } else {
        std::memcpy(pass.scratch.x + row * row_bytes, x, row_bytes);
      }
    }
  });
}

void MoeFfn::QuantizeActivation(const Pass& pass) const {
  if (!pass.int8_x) return;
  const int k = shape_.intermediate;
  ForRanges(pass.parallel, pass.rows, k, [&](int begin, int end) {
    QuantizeRows(*pass.int8_x, pass.args.x_is_bf16,
                 pass.scratch.activation + size_t(begin) * k * pass.element_bytes, k, end - begin,
                 k, pass.Codes(begin, k));
  });
}

// Tiles of w times rows of x [rows of the pass, w.k], or of their codes.
void MoeFfn::Multiply(const Pass& pass, const void* x, int first_row, int rows,
                      const PackedMatrix& w, int tile_begin, int tile_end, float* y,
                      int64_t y_stride) const {
  if (pass.int8_x) {
    Int8Gemm(int8_gemm_, {pass.Codes(first_row, w.k), rows, w, y, y_stride}, tile_begin, tile_end);
  } else {
    Gemm(gemm_, pass.args.x_is_bf16,
         {static_cast<const uint8_t*>(x) + size_t(first_row) * w.k * pass.element_bytes, w.k, rows,
          w, y, y_stride},
         tile_begin, tile_end);
  }
}

// f(task, first row, rows, thread) for tasks that together cover `tiles` tiles of every active
// expert.
template <typename F>
void MoeFfn::ForTiles(const Pass& pass, int tiles, F f) const {
  const Scratch& s = pass.scratch;
  const auto cost_per_tile = [&](int expert) {
    return std::max(s.row_count[expert], kRowsPerRead);
  };
  int64_t cost = 0;
  for (int i = 0; i < pass.active; ++i) cost += int64_t{tiles} * cost_per_tile(s.active[i]);
  const int64_t task_cost = cost / (pass.parallel.threads() * kTasksPerThread);
  int tasks = 0;
  for (int i = 0; i < pass.active; ++i) {
    const int64_t tiles_of_cost =
        task_cost / cost_per_tile(s.active[i]) / kRunTilesMin * kRunTilesMin;
    const int run = static_cast<int>(std::clamp<int64_t>(tiles_of_cost, kRunTilesMin, kRunTiles));
    for (int tile = 0; tile < tiles; tile += run)
      s.tasks[tasks++] = {s.active[i], tile, std::min(tiles, tile + run)};
  }
  pass.parallel.Run(tasks, [&](int task, int thread) {
    const int expert = s.tasks[task].expert;
    f(s.tasks[task], s.first_row[expert], s.row_count[expert], thread);
  });
}

void MoeFfn::GateUp(const Pass& pass) const {
  const int intermediate = shape_.intermediate;
  ForTiles(
      pass, Tiles(intermediate), [&](const TileTask& task, int first_row, int rows, int thread) {
        const ExpertWeights& expert = pass.args.experts[task.expert];
        float* gate = pass.scratch.gate_up + size_t{2} * thread * kRowBlock * kRunTiles * kTileRows;
        float* up = gate + kRowBlock * kRunTiles * kTileRows;
        for (int row = first_row; row < first_row + rows; row += kRowBlock) {
          const int block_rows = std::min(kRowBlock, first_row + rows - row);
          int columns = 0;
          for (auto [w, y] : {std::pair{&expert.gate, gate}, std::pair{&expert.up, up}}) {
            // The run's outputs alone are stored.
            const PackedMatrix part = TileRange(*w, task.tile_begin, task.tile_end);
            columns = part.n;
            Multiply(pass, pass.scratch.x, row, block_rows, part, 0, Tiles(part.n), y, columns);
            AddBias(part.bias, y, block_rows, columns);
          }
          uint8_t* out =
              pass.scratch.activation +
              (size_t(row) * intermediate + task.tile_begin * kTileRows) * pass.element_bytes;
          Glu(isa_, {shape_.glu, gate, up, columns, out, intermediate, block_rows, columns,
                     pass.args.x_is_bf16});
        }
      });
}

void MoeFfn::Down(const Pass& pass) const {
  const int hidden = shape_.hidden;
  ForTiles(pass, Tiles(hidden), [&](const TileTask& task, int first_row, int rows, int) {
    const PackedMatrix& w = pass.args.experts[task.expert].down;
    float* y = pass.scratch.down + size_t(first_row) * hidden;
    Multiply(pass, pass.scratch.activation, first_row, rows, w, task.tile_begin, task.tile_end, y,
             hidden);
    const int column = task.tile_begin * kTileRows;
    const int columns = std::min(hidden, task.tile_end * kTileRows) - column;
    if (w.bias == nullptr) return;
    for (int r = 0; r < rows; ++r)
      AddBias(w.bias + column, y + size_t(r) * hidden + column, 1, columns);
  });
}

void MoeFfn::Combine(const Pass& pass) const {
  const int hidden = shape_.hidden, top_k = shape_.top_k;
  ForRanges(pass.parallel, pass.tokens, int64_t{top_k} * hidden, [&](int begin, int end) {
    for (int t = begin; t < end; ++t) {
      float* y = pass.args.y + size_t(pass.token + t) * hidden;
      std::fill(y, y + hidden, 0.0f);
      for (int slot = 0; slot < top_k; ++slot) {
        const int row = pass.scratch.row_of_slot[t * top_k + slot];
        if (row < 0) continue;
        const float weight = pass.args.weights[size_t(pass.token + t) * top_k + slot];
        const float* down = pass.scratch.down + size_t(row) * hidden;
        for (int i = 0; i < hidden; ++i) y[i] += weight * down[i];
      }
    }
  });
}

}  // namespace kt
