// SPDX-License-Identifier: Apache-2.0
// The pages under big pieces of memory: huge ones where the machine gives them, and what was got.
// All functions may be called from any thread, for ranges that do not overlap.
#ifndef KT_COMMON_IPC_PAGES_H_
#define KT_COMMON_IPC_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace kt {

enum class PageKind { kSmall, kTransparent, kHugetlb };  // ascending in what they promise

const char* PageKindName(PageKind kind);  // "4 KiB pages", "transparent huge pages", ...

constexpr size_t kSmallPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

constexpr size_t RoundUp(size_t bytes, size_t page) { return (bytes + page - 1) / page * page; }

enum class MapAccess { kRead, kReadWrite };

// Address space for `bytes`: of the file `fd`, shared, or private and
// anonymous for -1. Pieces of 2 MiB and more begin at a multiple of that. nullptr: see errno.
uint8_t* MapMemory(int fd, size_t bytes, MapAccess access = MapAccess::kReadWrite);

// Puts pages under a mapping now, each from the memory it is bound to, else from that of the
// calling thread's node; huge pages where `kind` says so and the kernel can. A hint: where the
// kernel refuses, pages come when they are touched. `data` is a multiple of 2 MiB unless kSmall.
void PopulatePages(uint8_t* data, size_t bytes, PageKind kind);

// What lies under a range of this process, by /proc/self/smaps.
struct PageUse {
  PageKind kind = PageKind::kSmall;  // of the greater part
  double huge_share = 0;             // of the range, 0 to 1
};
PageUse ReadPageUse(const void* data, size_t bytes);

}  // namespace kt

#endif  // KT_COMMON_IPC_PAGES_H_
