// SPDX-License-Identifier: Apache-2.0
#include "coordinator/scheduler/prefix_cache.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/status.h"

namespace kt {
namespace {

using Tokens = std::span<const int32_t>;

int CommonLength(Tokens a, Tokens b) {
  return static_cast<int>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

bool PrefixCache::Lexicographic::operator()(Tokens a, Tokens b) const {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}

PrefixCache::PrefixCache(BlockPool* blocks, StatePool* states)
    : blocks_(blocks), states_(states), nodes_(static_cast<size_t>(blocks->blocks())) {}

const PrefixCache::Children& PrefixCache::ChildrenOf(int32_t block) const {
  return block == kRoot ? first_ : nodes_[block]->children;
}
PrefixCache::Children& PrefixCache::ChildrenOf(int32_t block) {
  return block == kRoot ? first_ : nodes_[block]->children;
}

CachedPrefix PrefixCache::Find(int32_t before, int begin, int limit,
                               absl::FunctionRef<int32_t(int)> token) const {
  CachedPrefix known;
  known.tokens = begin;
  BlockTable path;
  std::vector<int32_t> next;
  const int block_tokens = blocks_->block_tokens();
  for (int position = begin; position < limit;) {
    next.clear();
    for (int end = std::min(limit, position + block_tokens); position < end; ++position)
      next.push_back(token(position));
    const int start = position - static_cast<int>(next.size());
    // The child that has most in common is the first that is not less, or the one before it.
    const Children& children = ChildrenOf(path.empty() ? before : path.back());
    auto best = children.lower_bound(next);
    int common = best == children.end() ? 0 : CommonLength(best->first, next);
    if (best != children.begin()) {
      const auto less = std::prev(best);
      const int length = CommonLength(less->first, next);
      if (best == children.end() || length > common) {
        best = less;
        common = length;
      }
    }
    if (common == 0) break;
    path.push_back(best->second);
    const bool whole = common == static_cast<int>(best->first.size());
    if (states_ == nullptr || (whole && nodes_[best->second]->slot != 0)) {
      known.tokens = start + common;
      known.blocks = path;
    }
    if (common < block_tokens) break;
  }
  known.idle =
      static_cast<int>(std::count_if(known.blocks.begin(), known.blocks.end(),
                                     [this](int32_t block) { return blocks_->refs(block) == 0; }));
  return known;
}

int32_t PrefixCache::Add(int32_t before, Tokens tokens, int32_t block, int32_t state) {
  Children& children = ChildrenOf(before);
  auto at = children.lower_bound(tokens);
  if (at != children.end() && CommonLength(at->first, tokens) == static_cast<int>(tokens.size())) {
    block = at->second;
  } else {
    if (at != children.begin()) {
      const auto less = std::prev(at);
      if (CommonLength(less->first, tokens) == static_cast<int>(less->first.size()))
        Remove(less->second);  // the new one holds its tokens too
    }
    nodes_[block] = std::make_unique<Node>();
    nodes_[block]->before = before;
    nodes_[block]->tokens.assign(tokens.begin(), tokens.end());
    children.emplace(nodes_[block]->tokens, block);
    blocks_->Keep(block);
  }
  if (state != 0 && nodes_[block]->tokens.size() == tokens.size()) AddState(block, state);
  return block;
}

bool PrefixCache::AddState(int32_t block, int32_t slot) {
  Node& node = *nodes_[block];
  if (node.slot != 0) {
    slots_.splice(slots_.end(), slots_, node.slot_at);
    return false;
  }
  node.slot = states_->Share(slot);
  node.slot_at = slots_.insert(slots_.end(), block);
  return true;
}

int32_t PrefixCache::ShareState(int32_t block) {
  const Node& node = *nodes_[block];
  slots_.splice(slots_.end(), slots_, node.slot_at);
  return states_->Share(node.slot);
}

void PrefixCache::DropState(int32_t block) {
  Node& node = *nodes_[block];
  if (node.slot == 0) return;
  slots_.erase(node.slot_at);
  states_->Release(&node.slot);
}

void PrefixCache::Remove(int32_t block) {
  DropState(block);
  ChildrenOf(nodes_[block]->before).erase(nodes_[block]->tokens);
  nodes_[block].reset();
  blocks_->Drop(block);
}

void PrefixCache::FreeBlocks(int free) {
  while (blocks_->free_blocks() < free) Remove(blocks_->longest_idle());
}

// Dropping a slot that somebody else holds as well would free nothing.
void PrefixCache::FreeState() {
  for (auto at = slots_.begin(); states_->free_slots() == 0;) {
    const int32_t block = *at++;
    if (states_->refs(nodes_[block]->slot) == 1) DropState(block);
  }
}

void PrefixCache::Flush() {
  FreeBlocks(blocks_->available_blocks());
  while (!slots_.empty()) DropState(slots_.front());
}

void PrefixCache::AppendStates(std::vector<int32_t>* held) const {
  for (int32_t block : slots_) held->push_back(nodes_[block]->slot);
}

absl::Status PrefixCache::Audit() const {
  size_t children = first_.size(), nodes = 0, slots = 0;
  for (int32_t block = 0; block < blocks_->blocks(); ++block) {
    if (blocks_->kept(block) != (nodes_[block] != nullptr))
      return Internal("prefix cache: block {} is kept without a node, or has one", block);
    if (nodes_[block] == nullptr) continue;
    const Node& node = *nodes_[block];
    ++nodes;
    children += node.children.size();
    slots += node.slot != 0;
    const int32_t before = node.before;
    if (before != kRoot && (nodes_[before] == nullptr ||
                            nodes_[before]->tokens.size() != size_t(blocks_->block_tokens()))) {
      return Internal(
          "prefix cache: block {} follows block {}, which is not a full one that is "
          "kept",
          block, before);
    }
    if (before != kRoot && blocks_->refs(block) > blocks_->refs(before))
      return Internal("prefix cache: block {} has more holders than block {} before it", block,
                      before);
    const Children& siblings = ChildrenOf(before);
    const auto at = siblings.find(node.tokens);
    if (at == siblings.end() || at->second != block)
      return Internal("prefix cache: block {} is not found by its tokens", block);
    const auto next = std::next(at);
    if (node.tokens.empty() ||
        (next != siblings.end() &&
         CommonLength(node.tokens, next->first) == static_cast<int>(node.tokens.size()))) {
      return Internal("prefix cache: the tokens of block {} are the beginning of a sibling's",
                      block);
    }
  }
  if (children != nodes || slots != slots_.size())
    return Internal("prefix cache: {} nodes, {} children, {} slots, {} of them listed", nodes,
                    children, slots, slots_.size());
  return absl::OkStatus();
}

}  // namespace kt
