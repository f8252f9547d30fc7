// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/features/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "common/base/status.h"

namespace kt {
namespace {

struct Registers {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers Cpuid(uint32_t leaf, uint32_t subleaf = 0) {
  Registers r;
  __get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx,
                    &r.edx);  // leaves zeros where the leaf does not exist
  return r;
}

// The register state that the operating system saves (XCR0); 0 without XSAVE.
uint64_t SavedState() {
  if (!(Cpuid(1).ecx >> 27 & 1)) return 0;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return uint64_t{high} << 32 | low;
}

constexpr uint64_t kYmmState = 0x6, kZmmState = 0xe6, kTileState = 0x60000;

// Linux lets a process use tile registers once it has asked to.
bool TilesPermitted() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

struct Flag {
  const char* name;  // as in /proc/cpuinfo
  uint32_t leaf, subleaf;
  uint32_t Registers::*word;
  int bit;
  uint64_t state;  // bits of XCR0 without which the instructions fault
  Isa first_row;   // the first row compiled with it; kNoRow: none
};
constexpr Isa kNoRow = static_cast<Isa>(99);

constexpr Flag kFlags[] = {
    {"avx2", 7, 0, &Registers::ebx, 5, kYmmState, Isa::kAvx2},
    {"fma", 1, 0, &Registers::ecx, 12, kYmmState, Isa::kAvx2},
    {"f16c", 1, 0, &Registers::ecx, 29, kYmmState, Isa::kAvx2},
    {"bmi2", 7, 0, &Registers::ebx, 8, 0, Isa::kAvx2},
    {"avx512f", 7, 0, &Registers::ebx, 16, kZmmState, Isa::kAvx512f},
    {"avx512bw", 7, 0, &Registers::ebx, 30, kZmmState, Isa::kAvx512f},
    {"avx512vl", 7, 0, &Registers::ebx, 31, kZmmState, Isa::kAvx512f},
    {"avx512dq", 7, 0, &Registers::ebx, 17, kZmmState, Isa::kAvx512f},
    {"avx512_bf16", 7, 1, &Registers::eax, 5, kZmmState, Isa::kAvx512Bf16},
    {"avx512_vbmi", 7, 0, &Registers::ecx, 1, kZmmState, Isa::kAvx512Bf16},
    {"avx512_vnni", 7, 0, &Registers::ecx, 11, kZmmState, Isa::kAvx512Bf16},
    {"avx_vnni", 7, 1, &Registers::eax, 4, kYmmState, kNoRow},
    {"amx_tile", 7, 0, &Registers::edx, 24, kTileState, Isa::kAmx},
    {"amx_bf16", 7, 0, &Registers::edx, 22, kTileState, Isa::kAmx},
    {"amx_int8", 7, 0, &Registers::edx, 25, kTileState, kNoRow},
};

bool Present(const Flag& flag) {
  return (Cpuid(flag.leaf, flag.subleaf).*flag.word >> flag.bit & 1) &&
         (SavedState() & flag.state) == flag.state;
}

std::string MissingFlags(Isa isa) {
  std::string missing;
  for (const Flag& flag : kFlags) {
    if (flag.first_row <= isa && !Present(flag))
      missing += (missing.empty() ? "" : ", ") + std::string(flag.name);
  }
  if (isa == Isa::kAmx && missing.empty() && !TilesPermitted())
    missing = "the kernel's permission to use tile registers (Linux 5.16 or later gives it)";
  return missing;
}

}  // namespace

const char* IsaName(Isa isa) {
  static constexpr const char* kNames[] = {"scalar", "avx2", "avx512f", "avx512bf16", "amx"};
  return kNames[static_cast<int>(isa)];
}

bool BatchInvariant(Isa isa) { return isa != Isa::kAmx; }

bool IsaSupported(Isa isa) { return MissingFlags(isa).empty(); }

bool IsaForced() {
  const char* forced = std::getenv("KT_FORCE_ISA");
  return forced != nullptr && *forced != '\0';
}

absl::StatusOr<Isa> SelectIsa() {
  if (IsaForced()) {
    const char* forced = std::getenv("KT_FORCE_ISA");
    for (Isa isa : kAllIsas) {
      if (std::strcmp(forced, IsaName(isa)) != 0) continue;
      if (IsaSupported(isa)) return isa;
      return Unimplemented("KT_FORCE_ISA={}: this CPU ({}) lacks {}; unset it or name a lower row",
                           forced, CpuModelName(), MissingFlags(isa));
    }
    return InvalidArgument(
        "KT_FORCE_ISA={}: unknown, use scalar, avx2, avx512f, avx512bf16 or amx, or unset it",
        forced);
  }
  Isa best = Isa::kScalar;
  for (Isa isa : kAllIsas) {
    if (BatchInvariant(isa) && IsaSupported(isa)) best = isa;
  }
  return best;
}

std::vector<std::pair<std::string, bool>> CpuFlagList() {
  std::vector<std::pair<std::string, bool>> list;
  for (const Flag& flag : kFlags) list.emplace_back(flag.name, Present(flag));
  return list;
}

std::string CpuModelName() {
  constexpr uint32_t kFirstNameLeaf = 0x80000002, kLastNameLeaf = 0x80000004;
  std::string name;
  for (uint32_t leaf = kFirstNameLeaf; leaf <= kLastNameLeaf; ++leaf) {
    Registers r = Cpuid(leaf);
    char text[sizeof r];
    std::memcpy(text, &r, sizeof r);
    name.append(text, sizeof r);
  }
  name = name.c_str();  // up to the first NUL
  size_t first = name.find_first_not_of(' ');
  if (first == std::string::npos) return "unknown";
  return name.substr(first, name.find_last_not_of(' ') - first + 1);
}

}  // namespace kt
