// SPDX-License-Identifier: Apache-2.0
#ifndef KT_COORDINATOR_TOKENIZER_BPE_H_
#define KT_COORDINATOR_TOKENIZER_BPE_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace kt {

// Byte pair encoding of one piece: its bytes become tokens, then the neighbouring pair of lowest
// rank is merged until none is left. Filled once, then immutable and safe for concurrent use.
class Bpe {
 public:
  struct Options {
    bool ignore_merges = false;  // a piece that is a token as a whole is taken as it is
    std::optional<int32_t>
        unk_token;          // stands for a byte without token; absent: such a byte is dropped
    bool fuse_unk = false;  // one unk_token for a run of such bytes
  };
  // Buffers that one thread reuses from piece to piece.
  struct Scratch {
    struct Symbol {
      int32_t id, previous, next;  // id kGone: merged into the symbol before
    };
    struct Candidate {
      int32_t rank, position, id;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  Bpe() { byte_tokens_.fill(kGone); }
  void set_options(const Options& options) { options_ = options; }
  bool AddToken(std::string bytes, int32_t id);  // false: there already
  // The pair (left, right) becomes `merged`; a second entry for the pair replaces the first.
  void AddMerge(int32_t left, int32_t right, int32_t rank, int32_t merged);

  std::optional<int32_t> Find(std::string_view bytes) const;
  // Appends the ids of `piece` (under 2 GiB). Time n log n.
  void Encode(std::string_view piece, Scratch* scratch, std::vector<int32_t>* ids) const;

 private:
  static constexpr int32_t kGone = -1;
  struct Merge {
    int32_t rank, id;
  };
  const Merge* FindMerge(int32_t left, int32_t right) const;
  void BytesToSymbols(std::string_view piece, std::vector<Scratch::Symbol>* symbols) const;

  Options options_;
  std::array<int32_t, 256> byte_tokens_;
  absl::flat_hash_map<std::string, int32_t> tokens_;
  absl::flat_hash_map<uint64_t, Merge> merges_;
};

}  // namespace kt

#endif  // KT_COORDINATOR_TOKENIZER_BPE_H_
