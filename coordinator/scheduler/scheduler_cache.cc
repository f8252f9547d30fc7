// SPDX-License-Identifier: Apache-2.0
// The part of the scheduler that deals with the prefix cache.
#include <algorithm>
#include <utility>

#include "coordinator/scheduler/scheduler.h"

namespace kt {
namespace {

// A prompt is cut at its last block boundary, so that the state there can be kept, where so many
// blocks come before it: the cut costs a step of a few tokens.
constexpr int kBlocksBeforeCut = 4;

int32_t LastCached(const Sequence& s) {
  return s.cached == 0 ? PrefixCache::kRoot : s.table[s.cached - 1];
}

std::vector<int32_t> Tokens(const Sequence& s, int begin, int end) {
  std::vector<int32_t> tokens;
  for (int position = begin; position < end; ++position) tokens.push_back(s.token(position));
  return tokens;
}

}  // namespace

// What the cache knows behind the positions that the sequence has, which end with a cached block.
CachedPrefix Scheduler::FindCached(const Sequence& s, int limit) const {
  if (!caches()) return {};
  return cache_.Find(LastCached(s), s.computed, limit,
                     [&s](int position) { return s.token(position); });
}

void Scheduler::Adopt(Sequence& s, const CachedPrefix& prefix) {
  if (prefix.tokens <= s.computed) return;
  if (s.choice == 0) {  // the others have the same prompt
    const int found = std::min(prefix.tokens, s.prompt_size()) - std::max(s.frontier, s.computed);
    s.request->cached_tokens += std::max(found, 0);
    stats_.tokens_cached += std::max(found, 0);
  }
  for (int32_t block : prefix.blocks) pool_.Share(&s.table, block);
  s.computed = prefix.tokens;
  s.cached = prefix.tokens / pool_.block_tokens();
  s.frontier = std::max(s.frontier, s.computed);
  if (!has_state()) return;
  states_.Release(&s.state);
  s.state = cache_.ShareState(s.table.back());
  s.state_kept = 0;
  s.state_landmark = s.computed;
}

// What others have computed meanwhile: whole blocks, so that it takes no block more.
void Scheduler::AdoptFromRunning() {
  const int block_tokens = pool_.block_tokens();
  for (const auto& [id, s] : running_) {
    if (s->NeedsPrefill() && s->computed == s->cached * block_tokens)
      Adopt(*s, FindCached(*s, s->reusable() / block_tokens * block_tokens));
  }
}

// Blocks that are full now. Where another sequence was first with the same tokens, its block is
// used from here on.
void Scheduler::CacheComputed(Sequence& s) {
  const int block_tokens = pool_.block_tokens();
  for (int end; (end = (s.cached + 1) * block_tokens) <= s.computed; ++s.cached) {
    const int32_t block = s.table[s.cached];
    const int32_t kept =
        cache_.Add(LastCached(s), Tokens(s, end - block_tokens, end), block, /*state=*/0);
    if (kept != block) pool_.Exchange(&s.table, s.cached, kept);
  }
  if (has_state() && s.computed == s.cached * block_tokens) CacheState(s);
}

// The tokens in the last block, and the state that all of them left: where the next turn of a
// conversation, or the sequence itself after it was pushed out, goes on. A block that another
// choice may still write in place is left alone.
void Scheduler::CacheTail(const Sequence& s) {
  const int begin = s.cached * pool_.block_tokens();
  if (s.table.empty() || s.computed == 0) return;
  if (s.computed > begin) {
    const int32_t block = s.table[s.cached];
    if (pool_.refs(block) == 1)
      cache_.Add(LastCached(s), Tokens(s, begin, s.computed), block, s.state);
  } else if (has_state()) {
    cache_.AddState(LastCached(s), s.state);
  }
}

// Keeps the state at a block boundary in place of the one before, which stays where it ends the
// prompt or is twice as far as the last that stayed: so a sequence leaves few, a prompt that shares
// only a part of this one finds one behind at least half of it, and one that goes on with an answer
// that was cut computes few tokens again.
void Scheduler::CacheState(Sequence& s) {
  if (!cache_.AddState(LastCached(s), s.state)) return;
  const int former = std::exchange(s.state_kept, s.computed);
  if (former == 0) return;
  if (former >= 2 * s.state_landmark || former == PromptBoundary(s)) {
    s.state_landmark = former;
  } else {
    cache_.DropState(s.table[former / pool_.block_tokens() - 1]);
  }
}

// The last block boundary with a prompt token behind it.
int Scheduler::PromptBoundary(const Sequence& s) const {
  return (s.prompt_size() - 1) / pool_.block_tokens() * pool_.block_tokens();
}

// The end of a chunk of a model with states, moved to where the state can be kept.
int Scheduler::EndWithState(const Sequence& s, int begin, int end) const {
  const int block_tokens = pool_.block_tokens();
  if (end < s.size() && end / block_tokens * block_tokens > begin)
    end = end / block_tokens * block_tokens;
  const int boundary = PromptBoundary(s);
  const bool worthwhile = boundary - begin >= kBlocksBeforeCut * block_tokens;
  return worthwhile && boundary < end ? boundary : end;
}

}  // namespace kt
