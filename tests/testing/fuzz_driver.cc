// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target without libFuzzer: every corpus file, then seeded mutations of each (bit
// flips, cuts, repeats, splices).
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {
using Bytes = std::vector<uint8_t>;

Bytes Mutate(Bytes x, const Bytes& other, std::mt19937_64& rng) {
  int rounds = 1 + static_cast<int>(rng() % 4);
  for (int i = 0; i < rounds; ++i) {
    size_t n = x.size();
    switch (rng() % 5) {
      case 0:
        if (n > 0) x[rng() % n] ^= static_cast<uint8_t>(1u << (rng() % 8));
        break;
      case 1:
        if (n > 0) x.resize(rng() % n);
        break;
      case 2:
        if (n > 0) x[rng() % n] = static_cast<uint8_t>(rng());
        break;
      case 3: {
        if (n == 0) break;
        size_t from = rng() % n, count = 1 + rng() % std::min<size_t>(64, n - from);
        Bytes part(x.begin() + static_cast<long>(from),
                   x.begin() + static_cast<long>(from + count));
        x.insert(x.begin() + static_cast<long>(rng() % n), part.begin(), part.end());
        break;
      }
      default:
        if (!other.empty()) {
          size_t cut = rng() % other.size();
          x.insert(x.begin() + static_cast<long>(n == 0 ? 0 : rng() % n),
                   other.begin() + static_cast<long>(cut), other.end());
        }
    }
    if (x.size() > (1u << 20)) x.resize(1u << 20);
  }
  return x;
}
}  // namespace

int main(int argc, char** argv) {
  std::vector<Bytes> corpus = {{}};
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream file(entry.path(), std::ios::binary);
      corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  const char* text = std::getenv("KT_FUZZ_RUNS");
  long runs = text != nullptr ? std::atol(text) : 5000;
  for (const Bytes& x : corpus) LLVMFuzzerTestOneInput(x.data(), x.size());
  std::mt19937_64 rng(1);
  for (long i = 0; i < runs; ++i) {
    Bytes x = Mutate(corpus[rng() % corpus.size()], corpus[rng() % corpus.size()], rng);
    LLVMFuzzerTestOneInput(x.data(), x.size());
  }
  std::printf("%zu corpus inputs and %ld mutations\n", corpus.size(), runs);
  return 0;
}
