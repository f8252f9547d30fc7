// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/machine_peak/machine_peak.h"

#include <emmintrin.h>

#include "kernels/cpu/machine_peak/multiply_adds.h"

namespace kt {

namespace scalar {

double MultiplyFp32(long rounds, float* sum) noexcept {
  constexpr int kChains = 10;
  __m128 acc[kChains];
  for (__m128& a : acc) a = _mm_set1_ps(1);
  const __m128 x = _mm_set1_ps(0.999f), y = _mm_set1_ps(1e-3f);
  for (long i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (__m128& a : acc) a = _mm_add_ps(_mm_mul_ps(a, x), y);
  }
  for (__m128 a : acc) *sum += _mm_cvtss_f32(a);
  return double(rounds) * kChains * 4 * 2;
}

}  // namespace scalar

namespace {

using Loop = double (*)(long rounds, float* sum) noexcept;

// [Isa][Multiply]
constexpr Loop kLoops[][3] = {
    {&scalar::MultiplyFp32, &scalar::MultiplyFp32, &scalar::MultiplyFp32},
    {&avx2::MultiplyFp32, &avx2::MultiplyFp32, &avx2::MultiplyInt8},
    {&avx512f::MultiplyFp32, &avx512f::MultiplyFp32, &avx512f::MultiplyInt8},
    {&avx512f::MultiplyFp32, &avx512bf16::MultiplyBf16, &avx512bf16::MultiplyInt8},
    {&avx512f::MultiplyFp32, &avx512bf16::MultiplyBf16, &avx512bf16::MultiplyInt8},
};

template <int Streams>
__m128i Read(const char* data, long bytes) {
  __m128i acc[Streams][4] = {};
  const long run = bytes / Streams / 64 * 64;
  for (long i = 0; i < run; i += 64) {
#pragma GCC unroll 4
    for (int s = 0; s < Streams; ++s) {
      const auto* line = reinterpret_cast<const __m128i*>(data + s * run + i);
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) acc[s][c] = _mm_xor_si128(acc[s][c], _mm_load_si128(line + c));
    }
  }
  __m128i all = _mm_setzero_si128();
  for (auto& stream : acc) {
    for (__m128i a : stream) all = _mm_xor_si128(all, a);
  }
  return all;
}

}  // namespace

double MultiplyAdds(Multiply kind, Isa isa, long rounds, float* sum) noexcept {
  return kLoops[static_cast<int>(isa)][static_cast<int>(kind)](rounds, sum);
}

void ReadMemory(const char* data, long bytes, int streams, float* sum) noexcept {
  const __m128i all = streams == 1   ? Read<1>(data, bytes)
                      : streams == 2 ? Read<2>(data, bytes)
                                     : Read<4>(data, bytes);
  *sum += static_cast<float>(_mm_cvtsi128_si32(all));
}

}  // namespace kt
