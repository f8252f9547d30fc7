// SPDX-License-Identifier: Apache-2.0
#include "common/topology/arena.h"

#include <emmintrin.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>

#include "common/base/status.h"
#include "common/topology/system_file.h"

namespace kt::topology {
namespace {

constexpr double kNearlyAll = 0.99;

// Calls f(begin, bytes) for all pieces of the range on the pool's threads.
void ForPieces(size_t bytes, Parallel& threads, FunctionRef<void(size_t, size_t)> f) {
  constexpr size_t kPiece = 16 * kHugePage;
  threads.Run(static_cast<int>((bytes + kPiece - 1) / kPiece), [&](int i, int) {
    const size_t begin = static_cast<size_t>(i) * kPiece;
    f(begin, std::min(kPiece, bytes - begin));
  });
}

absl::StatusOr<Segment> MakeSegment(const std::string& name, size_t bytes, PageKind kind,
                                    const Topology& topology, int node, Parallel& threads) {
  KT_ASSIGN_OR_RETURN(Segment segment, Segment::Reserve(name, bytes, kind));
  topology.BindMemory(segment.data(), segment.size(), node).IgnoreError();  // node_share tells
  std::atomic<bool> failed{false};
  ForPieces(segment.size(), threads, [&](size_t begin, size_t size) {
    if (!failed && !segment.Populate(begin, size, kind).ok()) failed = true;
  });
  if (failed) {
    return ResourceExhausted("{}: no memory for {} bytes; free memory or put fewer weights here",
                             name, segment.size());
  }
  return segment;
}

// The share of pages on `node`, of a sample; -1 where the kernel does not say.
double ShareOnNode(uint8_t* data, size_t bytes, int node) {
  constexpr size_t kSamplesMax = 4096;
  const size_t samples = std::clamp<size_t>(bytes / kSmallPage, 1, kSamplesMax);
  std::vector<void*> pages;
  for (size_t i = 0; i < samples; ++i)
    pages.push_back(data + bytes / kSmallPage * i / samples * kSmallPage);
  std::vector<int> nodes(samples, -1);
  if (syscall(SYS_move_pages, 0, samples, pages.data(), nullptr, nodes.data(), 0) != 0) return -1;
  const auto there = std::count(nodes.begin(), nodes.end(), node);
  return static_cast<double>(there) / static_cast<double>(samples);
}

// Bytes that no cache of the machine holds.
size_t MeasuredBytes(const Topology& topology) {
  constexpr size_t kLeast = size_t{64} << 20;
  size_t cache = 0;
  for (const Cache& c : topology.caches())
    cache = std::max(cache, static_cast<size_t>(c.bytes) * static_cast<size_t>(c.instances));
  return RoundUp(std::max(kLeast, 2 * cache), kHugePage);
}

// Several streams side by side and nothing asked for ahead, as kernels that stream weights do.
__m128i Read(const uint8_t* data, size_t bytes) {
  constexpr size_t kLine = 64, kStreams = 4;
  const size_t stream = bytes / kStreams / kLine * kLine;
  __m128i sum[4] = {};
  for (size_t at = 0; at < stream; at += kLine) {
    for (size_t s = 0; s < kStreams; ++s) {
      const auto* line = reinterpret_cast<const __m128i*>(data + s * stream + at);
      for (int i = 0; i < 4; ++i) sum[i] = _mm_xor_si128(sum[i], _mm_load_si128(line + i));
    }
  }
  return _mm_xor_si128(_mm_xor_si128(sum[0], sum[1]), _mm_xor_si128(sum[2], sum[3]));
}

double GbytesPerSecond(const uint8_t* data, size_t bytes, Parallel& threads) {
  std::atomic<int> sink{0};
  const auto start = std::chrono::steady_clock::now();
  threads.Run(threads.threads(), [&](int i, int) {
    const size_t part = bytes / static_cast<size_t>(threads.threads()) / 64 * 64;
    sink += _mm_cvtsi128_si32(Read(data + static_cast<size_t>(i) * part, part));
  });
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(bytes) / seconds.count() / 1e9;
}

// The best of a few rounds. What small pages cost is measured in turn with them.
void Measure(const Arena& arena, const Topology& topology, int node, Parallel& threads,
             ArenaFacts& facts) {
  constexpr int kRounds = 8;
  const size_t bytes = MeasuredBytes(topology);
  if (arena.segment.size() < bytes) return;
  uint8_t* reference = facts.pages.huge_share < kNearlyAll ? MapMemory(-1, bytes) : nullptr;
  if (reference != nullptr) {
    topology.BindMemory(reference, bytes, node).IgnoreError();
    ForPieces(bytes, threads, [&](size_t begin, size_t size) {
      PopulatePages(reference + begin, size, PageKind::kTransparent);
    });
  }
  double huge = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (reference != nullptr) huge = std::max(huge, GbytesPerSecond(reference, bytes, threads));
    facts.gbytes_per_s =
        std::max(facts.gbytes_per_s, GbytesPerSecond(arena.segment.data(), bytes, threads));
  }
  if (reference == nullptr) return;
  if (ReadPageUse(reference, bytes).huge_share >= kNearlyAll) facts.huge_gbytes_per_s = huge;
  munmap(reference, bytes);
}

std::string WarningFor(const ArenaFacts& facts, const Arena& arena, const Topology& topology) {
  const size_t bytes = arena.segment.size();
  std::string warning;
  if (bytes >= kHugePage && facts.pages.huge_share < kNearlyAll)
    warning = fmt::format("weights lie in {}; {}", Describe(facts), HugePageAdvice(bytes));
  if (facts.node < 0 || topology.nodes().size() < 2 || !topology.is_this_machine()) return warning;
  if (!warning.empty()) warning += ". ";
  if (facts.node_share < 0) {
    return warning + fmt::format(
                         "whether the weights lie on NUMA node {} is not known: the kernel "
                         "or sandbox forbids memory policies (allow mbind and move_pages, "
                         "in a container with CAP_SYS_NICE)",
                         facts.node);
  }
  if (facts.node_share < kNearlyAll) {
    return warning + fmt::format(
                         "only {:.0f} % of the weights lie on NUMA node {}, the rest is "
                         "read from other nodes; free memory there or give it fewer "
                         "experts",
                         facts.node_share * 100, facts.node);
  }
  return warning;
}

}  // namespace

absl::StatusOr<Arena> MakeArena(const std::string& name, size_t bytes, const Topology& topology,
                                int node, Parallel& threads) {
  std::vector<PageKind> kinds = {PageKind::kSmall};
  if (bytes >= kHugePage) kinds = {PageKind::kHugetlb, PageKind::kTransparent};
  absl::StatusOr<Segment> segment;
  for (PageKind kind : kinds) {
    segment = MakeSegment(name, bytes, kind, topology, node, threads);
    if (segment.ok()) break;
  }
  KT_RETURN_IF_ERROR(segment.status());
  Arena arena{.segment = *std::move(segment)};
  ArenaFacts& facts = arena.facts;
  facts.pages = ReadPageUse(arena.segment.data(), arena.segment.size());
  facts.node = node;
  if (node >= 0 && topology.is_this_machine())
    facts.node_share = ShareOnNode(arena.segment.data(), arena.segment.size(), node);
  Measure(arena, topology, node, threads, facts);
  facts.warning = WarningFor(facts, arena, topology);
  return arena;
}

std::string Describe(const ArenaFacts& facts) {
  std::string text = PageKindName(facts.pages.kind);
  if (facts.pages.kind != PageKind::kSmall || facts.pages.huge_share > 0)
    text += fmt::format(" ({:.0f} % huge)", facts.pages.huge_share * 100);
  if (facts.node >= 0) text += fmt::format(", NUMA node {}", facts.node);
  if (facts.node_share >= 0) text += fmt::format(" ({:.0f} %)", facts.node_share * 100);
  if (facts.gbytes_per_s > 0) text += fmt::format(", read at {:.1f} GB/s", facts.gbytes_per_s);
  if (facts.huge_gbytes_per_s > 0)
    text += fmt::format(" where huge pages give {:.1f}", facts.huge_gbytes_per_s);
  return text;
}

std::string HugePageAdvice(size_t bytes, const std::string& root) {
  const std::string file = root + "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
  const std::string setting = ChosenSetting(file);
  const std::string reserve = fmt::format(
      "sysctl vm.nr_hugepages={}",
      bytes == 0 ? "N (of 2 MiB each)" : std::to_string(RoundUp(bytes, kHugePage) / kHugePage));
  if (setting == "never" || setting == "deny" || setting.empty()) {
    return fmt::format("as root: {}{}",
                       setting.empty() ? "" : fmt::format("echo advise > {} or ", file), reserve);
  }
  return fmt::format(
      "free memory is in pieces: as root, before the start: sysctl vm.compact_memory=1 or {}",
      reserve);
}

}  // namespace kt::topology
