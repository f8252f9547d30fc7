// SPDX-License-Identifier: Apache-2.0
#include "common/ipc/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <fstream>

namespace kt {
namespace {
constexpr int kMadviseCollapse = 25;  // MADV_COLLAPSE, Linux 6.1; the C library may be older
}  // namespace

const char* PageKindName(PageKind kind) {
  switch (kind) {
    case PageKind::kSmall:
      return "4 KiB pages";
    case PageKind::kTransparent:
      return "transparent huge pages";
    case PageKind::kHugetlb:
      return "hugetlb pages";
  }
  return "";
}

uint8_t* MapMemory(int fd, size_t bytes, MapAccess access) {
  const size_t slack = bytes >= kHugePage ? kHugePage : 0;
  void* space =
      mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return nullptr;
  auto* begin = static_cast<uint8_t*>(space);
  const size_t before = slack == 0 ? 0 : -reinterpret_cast<uintptr_t>(begin) % kHugePage;
  uint8_t* data = begin + before;
  const int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  const int protection = access == MapAccess::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  if (mmap(data, bytes, protection, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
    const int error = errno;
    munmap(begin, bytes + slack);
    errno = error;
    return nullptr;
  }
  if (before > 0) munmap(begin, before);
  if (slack > before) munmap(data + bytes, slack - before);
  return data;
}

void PopulatePages(uint8_t* data, size_t bytes, PageKind kind) {
  if (kind == PageKind::kTransparent) {
    madvise(data, bytes, MADV_HUGEPAGE);
    // One small page in each huge one's place, then the kernel collapses them: that needs no
    // setting of the machine, unlike huge pages at the first touch, and copies 4 KiB each.
    for (size_t at = 0; at < bytes; at += kHugePage)
      madvise(data + at, kSmallPage, MADV_POPULATE_WRITE);
    madvise(data, bytes, kMadviseCollapse);
  }
  madvise(data, bytes, MADV_POPULATE_WRITE);
}

PageUse ReadPageUse(const void* data, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(data), end = begin + bytes;
  uint64_t transparent_kib = 0, hugetlb_kib = 0;
  bool inside = false;
  std::ifstream smaps("/proc/self/smaps");
  for (std::string line; std::getline(smaps, line);) {
    uint64_t from = 0, to = 0, kib = 0;
    char field[32];
    if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " ", &from, &to) == 2) {
      inside = from < end && to > begin;
    } else if (inside && std::sscanf(line.c_str(), "%31[^:]: %" SCNu64 " kB", field, &kib) == 2) {
      const std::string name = field;
      if (name == "AnonHugePages" || name == "ShmemPmdMapped" || name == "FilePmdMapped")
        transparent_kib += kib;
      if (name == "Private_Hugetlb" || name == "Shared_Hugetlb") hugetlb_kib += kib;
    }
  }
  const double share = static_cast<double>((transparent_kib + hugetlb_kib) << 10) /
                       static_cast<double>(std::max<size_t>(bytes, 1));
  PageUse use{.huge_share = std::min(share, 1.0)};
  if (share >= 0.5)
    use.kind = hugetlb_kib > transparent_kib ? PageKind::kHugetlb : PageKind::kTransparent;
  return use;
}

}  // namespace kt
