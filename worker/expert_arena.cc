// SPDX-License-Identifier: Apache-2.0
#include "worker/expert_arena.h"

#include <cstring>

#include "common/base/status.h"
#include "common/rpc/handshake.h"

namespace kt {
namespace {

constexpr uint32_t kMagic = 0x4145544b;  // "KTEA"

struct Header {
  uint32_t magic = kMagic;
  uint32_t layout_version = kPackedLayoutVersion;
  int32_t slice_begin = 0, slice_end = 0;
  uint64_t bank_bytes = 0;
  uint64_t fingerprint = 0;
};
static_assert(sizeof(Header) == 32 && sizeof(Header) <= kArenaHeaderBytes);

Header HeaderOf(const BankLayout& bank) {
  return {.slice_begin = bank.slice().begin,
          .slice_end = bank.slice().end,
          .bank_bytes = bank.bytes(),
          .fingerprint = bank.fingerprint()};
}

std::string Describe(const Header& h) {
  return fmt::format("layout version {}, rows {}-{}, {} bytes, fingerprint {:016x}",
                     h.layout_version, h.slice_begin, h.slice_end, h.bank_bytes, h.fingerprint);
}

}  // namespace

std::string ExpertArenaName(int worker, uint64_t incarnation) {
  return fmt::format("expert-weights-{}-{}", worker, incarnation);
}

void WriteArenaHeader(const BankLayout& bank, uint8_t* arena) {
  const Header header = HeaderOf(bank);
  std::memcpy(arena, &header, sizeof(header));
}

absl::Status CheckArena(const std::string& name, const uint8_t* arena, size_t bytes,
                        const BankLayout& bank) {
  if (bytes < kArenaHeaderBytes + bank.bytes()) {
    return FailedPrecondition("segment {}: has {} bytes, experts and header take {}", name, bytes,
                              kArenaHeaderBytes + bank.bytes());
  }
  Header header;
  std::memcpy(&header, arena, sizeof(header));
  if (header.magic != kMagic) return FailedPrecondition("segment {}: is no expert arena", name);
  const Header expected = HeaderOf(bank);
  if (std::memcmp(&header, &expected, sizeof(header)) != 0) {
    return FailedPrecondition("segment {}: has {}; expected {}", name, Describe(header),
                              Describe(expected));
  }
  return absl::OkStatus();
}

}  // namespace kt
