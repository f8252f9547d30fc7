// SPDX-License-Identifier: Apache-2.0
// Included ahead of an AVX-512 file (-include), this replaces its intrinsics by SIMDe's portable
// ones: the file's logic then runs on any CPU with AVX2.
#ifndef KT_TESTS_ISA_EMULATE_AVX512_H_
#define KT_TESTS_ISA_EMULATE_AVX512_H_

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

// Absent from SIMDe 0.7.4. Masks are full wherever these are used.
#define _mm512_maskz_slli_epi32(mask, a, count) \
  simde_mm512_maskz_mov_epi32(mask, simde_mm512_slli_epi32(a, count))
#define _mm512_maskz_srli_epi32(mask, a, count) \
  simde_mm512_maskz_mov_epi32(mask, simde_mm512_srli_epi32(a, count))
#define _mm512_maskz_srai_epi32(mask, a, count)                                                   \
  simde_mm512_inserti64x4(                                                                        \
      simde_mm512_castsi256_si512(simde_mm256_srai_epi32(simde_mm512_castsi512_si256(a), count)), \
      simde_mm256_srai_epi32(simde_mm512_extracti64x4_epi64(a, 1), count), 1)
#define _mm512_maskz_cvtepi32_ps(mask, a) KT_HALVES_TO_FLOAT(a)
#define KT_HALVES_TO_FLOAT(a)                                                                 \
  simde_mm512_castsi512_ps(simde_mm512_inserti64x4(                                           \
      simde_mm512_castsi256_si512(                                                            \
          simde_mm256_castps_si256(simde_mm256_cvtepi32_ps(simde_mm512_castsi512_si256(a)))), \
      simde_mm256_castps_si256(simde_mm256_cvtepi32_ps(simde_mm512_extracti64x4_epi64(a, 1))), 1))
#define KT_WIDEN_HALVES(widen, low, high)                                        \
  simde_mm512_inserti64x4(simde_mm512_castsi256_si512(simde_mm256_##widen(low)), \
                          simde_mm256_##widen(high), 1)
#define _mm512_maskz_cvtepu8_epi32(mask, a) \
  KT_WIDEN_HALVES(cvtepu8_epi32, a, simde_mm_srli_si128(a, 8))
#define _mm512_maskz_cvtepu16_epi32(mask, a)                      \
  KT_WIDEN_HALVES(cvtepu16_epi32, simde_mm256_castsi256_si128(a), \
                  simde_mm256_extracti128_si256(a, 1))

// Misnamed in SIMDe 0.7.4: the alias takes the arguments of the masked form.
#undef _mm512_madd_epi16
#define _mm512_madd_epi16(a, b) simde_mm512_madd_epi16(a, b)

#endif  // KT_TESTS_ISA_EMULATE_AVX512_H_
