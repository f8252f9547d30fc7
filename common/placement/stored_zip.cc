// SPDX-License-Identifier: Apache-2.0
#include "common/placement/stored_zip.h"

#include <algorithm>
#include <optional>

#include "common/base/status.h"
#include "common/placement/byte_reader.h"

namespace kt {
namespace {

using Bytes = std::span<const uint8_t>;

constexpr uint32_t kEnd = 0x06054b50, kEntry = 0x02014b50, kLocal = 0x04034b50;
constexpr uint32_t kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50;
constexpr size_t kEndBytes = 22, kLocatorBytes = 20, kCommentBytesMax = 65535;

absl::Status Broken(const char* what) { return InvalidArgument("zip archive: {}", what); }

Bytes From(Bytes bytes, uint64_t offset) {
  return offset <= bytes.size() ? bytes.subspan(offset) : Bytes();
}

std::optional<size_t> FindEnd(Bytes bytes) {
  if (bytes.size() < kEndBytes) return std::nullopt;
  const size_t last = bytes.size() - kEndBytes;
  const size_t first = last - std::min(last, kCommentBytesMax);
  for (size_t at = last + 1; at-- > first;) {
    if (ByteReader(bytes.subspan(at)).Read<uint32_t>() == kEnd) return at;
  }
  return std::nullopt;
}

struct Directory {
  uint64_t entries = 0, offset = 0;
};

absl::StatusOr<Directory> FindDirectory(Bytes bytes) {
  const std::optional<size_t> end = FindEnd(bytes);
  if (!end) return Broken("has no end record");
  ByteReader record(bytes.subspan(*end + 10));
  Directory directory;
  directory.entries = record.Read<uint16_t>();
  record.Take(4);
  directory.offset = record.Read<uint32_t>();
  if (directory.entries != 0xffff && directory.offset != 0xffffffff) return directory;
  ByteReader locator(*end >= kLocatorBytes ? bytes.subspan(*end - kLocatorBytes) : Bytes());
  if (locator.Read<uint32_t>() != kEnd64Locator) return Broken("has no zip64 locator");
  locator.Take(4);
  ByteReader end64(From(bytes, locator.Read<uint64_t>()));
  if (end64.Read<uint32_t>() != kEnd64) return Broken("has no zip64 end record");
  end64.Take(28);
  directory.entries = end64.Read<uint64_t>();
  end64.Take(8);
  directory.offset = end64.Read<uint64_t>();
  return end64.ok() ? absl::StatusOr<Directory>(directory) : Broken("is cut short");
}

// The contents behind the local header at `offset`.
absl::StatusOr<Bytes> Contents(Bytes bytes, uint64_t offset, uint64_t size) {
  ByteReader local(From(bytes, offset));
  if (local.Read<uint32_t>() != kLocal) return Broken("an entry has no local header");
  local.Take(22);
  const uint16_t name = local.Read<uint16_t>(), extra = local.Read<uint16_t>();
  local.Take(uint64_t{name} + extra);
  const Bytes contents = local.Take(size);
  if (!local.ok()) return Broken("an entry ends behind the file");
  return contents;
}

}  // namespace

absl::StatusOr<std::map<std::string, Bytes>> ReadStoredZip(Bytes bytes) {
  KT_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(bytes));
  std::map<std::string, Bytes> entries;
  ByteReader in(From(bytes, directory.offset));
  for (uint64_t i = 0; i < directory.entries; ++i) {
    if (in.Read<uint32_t>() != kEntry) return Broken("its directory is cut short");
    in.Take(6);
    const uint16_t method = in.Read<uint16_t>();
    in.Take(8);
    const uint32_t packed = in.Read<uint32_t>(), size = in.Read<uint32_t>();
    const uint16_t name = in.Read<uint16_t>(), extra = in.Read<uint16_t>(),
                   comment = in.Read<uint16_t>();
    in.Take(8);
    const uint32_t offset = in.Read<uint32_t>();
    const std::string text = in.Text(name);
    in.Take(uint64_t{extra} + comment);
    if (!in.ok()) return Broken("its directory is cut short");
    if (method != 0 || packed != size)
      return Broken("an entry is compressed; expected stored ones");
    KT_ASSIGN_OR_RETURN(entries[text], Contents(bytes, offset, size));
  }
  return entries;
}

}  // namespace kt
