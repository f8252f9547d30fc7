// SPDX-License-Identifier: Apache-2.0
#include "coordinator/tokenizer/bpe.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/string_view.h"

namespace kt {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

// For a heap whose top is the lowest rank, leftmost first.
bool Later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return std::tie(a.rank, a.position) > std::tie(b.rank, b.position);
}

}  // namespace

bool Bpe::AddToken(std::string bytes, int32_t id) {
  if (bytes.size() == 1) byte_tokens_[static_cast<uint8_t>(bytes[0])] = id;
  return tokens_.emplace(std::move(bytes), id).second;
}

void Bpe::AddMerge(int32_t left, int32_t right, int32_t rank, int32_t merged) {
  merges_[PairKey(left, right)] = {rank, merged};
}

std::optional<int32_t> Bpe::Find(std::string_view bytes) const {
  auto it = tokens_.find(absl::string_view(bytes.data(), bytes.size()));
  if (it == tokens_.end()) return std::nullopt;
  return it->second;
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

void Bpe::BytesToSymbols(std::string_view piece, std::vector<Scratch::Symbol>* symbols) const {
  symbols->clear();
  bool after_unk = false;
  for (char c : piece) {
    int32_t id = byte_tokens_[static_cast<uint8_t>(c)];
    bool unk = id == kGone;
    bool dropped = unk && (!options_.unk_token || (after_unk && options_.fuse_unk));
    after_unk = unk;
    if (dropped) continue;
    auto index = static_cast<int32_t>(symbols->size());
    symbols->push_back({unk ? *options_.unk_token : id, index - 1, index + 1});
  }
}

void Bpe::Encode(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const {
  if (options_.ignore_merges) {
    if (auto id = Find(piece)) {
      ids->push_back(*id);
      return;
    }
  }
  auto& symbols = scratch->symbols;
  auto& heap = scratch->heap;
  BytesToSymbols(piece, &symbols);
  auto count = static_cast<int32_t>(symbols.size());
  heap.clear();
  for (int32_t i = 0; i + 1 < count; ++i) {
    if (const Merge* merge = FindMerge(symbols[i].id, symbols[i + 1].id))
      heap.push_back({merge->rank, i, merge->id});
  }
  std::make_heap(heap.begin(), heap.end(), Later);
  auto push = [&](int32_t left, int32_t right) {
    const Merge* merge = FindMerge(symbols[left].id, symbols[right].id);
    if (merge == nullptr) return;
    heap.push_back({merge->rank, left, merge->id});
    std::push_heap(heap.begin(), heap.end(), Later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), Later);
    Scratch::Candidate top = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[top.position];
    if (left.id == kGone || left.next >= count) continue;
    int32_t right = left.next;
    // A candidate outlives its pair when a neighbour was merged first.
    const Merge* merge = FindMerge(left.id, symbols[right].id);
    if (merge == nullptr || merge->id != top.id) continue;
    left.id = top.id;
    left.next = symbols[right].next;
    symbols[right].id = kGone;
    if (left.next < count) symbols[left.next].previous = top.position;
    if (left.previous >= 0) push(left.previous, top.position);
    if (left.next < count) push(top.position, left.next);
  }
  for (int32_t i = 0; i < count; i = symbols[i].next) ids->push_back(symbols[i].id);
}

}  // namespace kt
