// SPDX-License-Identifier: Apache-2.0
// The vector vocabulary of the elementwise and attention kernels: one source, compiled once per
// instruction set (kt_isa_library in cmake/isa.cmake) with KT_ISA_NAMESPACE naming the row.
// Everything here has internal linkage, so that nothing compiled for a wider machine can be picked
// by the linker for a narrower one; for the same reason these sources use no inline function of
// other headers.
//
// Fma() is fused where the row has FMA and a product and a sum where it has not; the compiler
// itself contracts nothing
// (-ffp-contract=off). So the bits of a result follow from the order of the calls alone, whatever
// the code around them.
#ifndef KT_KERNELS_CPU_SIMD_VEC_H_
#define KT_KERNELS_CPU_SIMD_VEC_H_

#include <immintrin.h>
#include <stdint.h>

#include "common/base/bf16.h"

#ifndef KT_ISA_NAMESPACE
#error "include vec.h only from sources of a kt_isa_library"
#endif

namespace kt::KT_ISA_NAMESPACE {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float VecF __attribute__((vector_size(4 * kLanes)));
typedef int32_t VecI __attribute__((vector_size(4 * kLanes)));
typedef uint32_t VecU __attribute__((vector_size(4 * kLanes)));
typedef uint16_t VecH __attribute__((vector_size(2 * kLanes)));

inline VecF Set(float x) { return x - VecF{}; }  // x - 0 is x for every x, -0 included
inline VecF Fma(VecF a, VecF b, VecF c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
inline float Fma(float a, float b, float c) {
#if defined(__AVX2__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
inline VecF Max(VecF a, VecF b) { return a > b ? a : b; }

// Lane i of the result is lane i ^ distance: a reduction by these steps is one fixed tree.
template <int kDistance>
VecF SwapLanes(VecF v) {
#if defined(__AVX512F__)
  return __builtin_shufflevector(v, v, 0 ^ kDistance, 1 ^ kDistance, 2 ^ kDistance, 3 ^ kDistance,
                                 4 ^ kDistance, 5 ^ kDistance, 6 ^ kDistance, 7 ^ kDistance,
                                 8 ^ kDistance, 9 ^ kDistance, 10 ^ kDistance, 11 ^ kDistance,
                                 12 ^ kDistance, 13 ^ kDistance, 14 ^ kDistance, 15 ^ kDistance);
#elif defined(__AVX2__)
  return __builtin_shufflevector(v, v, 0 ^ kDistance, 1 ^ kDistance, 2 ^ kDistance, 3 ^ kDistance,
                                 4 ^ kDistance, 5 ^ kDistance, 6 ^ kDistance, 7 ^ kDistance);
#else
  return __builtin_shufflevector(v, v, 0 ^ kDistance, 1 ^ kDistance, 2 ^ kDistance, 3 ^ kDistance);
#endif
}
inline float ReduceAdd(VecF v) {
#if defined(__AVX512F__)
  v = v + SwapLanes<8>(v);
#endif
#if defined(__AVX2__)
  v = v + SwapLanes<4>(v);
#endif
  v = v + SwapLanes<2>(v);
  v = v + SwapLanes<1>(v);
  return v[0];
}
inline float ReduceMax(VecF v) {
#if defined(__AVX512F__)
  v = Max(v, SwapLanes<8>(v));
#endif
#if defined(__AVX2__)
  v = Max(v, SwapLanes<4>(v));
#endif
  v = Max(v, SwapLanes<2>(v));
  v = Max(v, SwapLanes<1>(v));
  return v[0];
}

// Loads and stores of activations: bf16 is widened when read and rounded to nearest even when
// written, NaN stays NaN.
inline VecF Load(const float* p) {
  VecF v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
inline VecF Load(const bf16* p) {
#if defined(__AVX512F__)
  // The masked form: GCC 12 warns of the undefined operand inside the plain one.
  VecU wide = (VecU)_mm512_maskz_cvtepu16_epi32(
      0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
  VecU wide = (VecU)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  VecH h;
  __builtin_memcpy(&h, p, sizeof(h));
  VecU wide = __builtin_convertvector(h, VecU);
#endif
  return (VecF)(wide << 16);
}
inline void Store(float* p, VecF v) { __builtin_memcpy(p, &v, sizeof(v)); }
inline void Store(bf16* p, VecF v) {
  VecU u = (VecU)v;
  VecU rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  VecU quiet = (u >> 16) | 0x40u;
  VecH h = __builtin_convertvector((VecU)(v == v ? rounded : quiet), VecH);
  __builtin_memcpy(static_cast<void*>(p), &h, sizeof(h));
}

// The first n (< kLanes) lanes; the rest reads as zero.
template <typename T>
VecF LoadFirst(const T* p, int n) {
  T lanes[kLanes] = {};
  __builtin_memcpy(static_cast<void*>(lanes), p, n * sizeof(T));
  return Load(lanes);
}
template <typename T>
void StoreFirst(T* p, VecF v, int n) {
  T lanes[kLanes];
  Store(lanes, v);
  __builtin_memcpy(static_cast<void*>(p), lanes, n * sizeof(T));
}

// Calls f(i, load, store) for each vector of [0, n), the last one short; f's load(p) and store(p,
// v) take pointers to element i.
template <typename F>
inline __attribute__((always_inline)) void ForEachVector(int64_t n, F f) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    f(
        i, [](const auto* p) { return Load(p); }, [](auto* p, VecF v) { Store(p, v); });
  }
  if (int rest = static_cast<int>(n - i); rest > 0) {
    f(
        i, [rest](const auto* p) { return LoadFirst(p, rest); },
        [rest](auto* p, VecF v) { StoreFirst(p, v, rest); });
  }
}

// e^x within 2 ulp for x in [-86.9, 88.7]; 0 below (no subnormal results), infinity above, NaN for
// NaN.
inline VecF Exp(VecF x) {
  // x = n ln 2 + r with |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to the integer n. ln 2 is
  // subtracted in two parts.
  VecF clamped = x < Set(-88.0f) ? Set(-88.0f) : x;
  clamped = clamped > Set(89.0f) ? Set(89.0f) : clamped;
  VecF shifted = Fma(clamped, Set(1.44269504f), Set(12582912.0f));
  VecF n = shifted - Set(12582912.0f);
  VecF r = Fma(n, Set(-0.693359375f), clamped);
  r = Fma(n, Set(2.12194440e-4f), r);
  VecF p = Set(1.9875691500e-4f);
  p = Fma(p, r, Set(1.3981999507e-3f));
  p = Fma(p, r, Set(8.3334519073e-3f));
  p = Fma(p, r, Set(4.1665795894e-2f));
  p = Fma(p, r, Set(1.6666665459e-1f));
  p = Fma(p, r, Set(5.0000001201e-1f));
  p = Fma(p, r * r, r) + 1.0f;
  // 2^(n-1) times 2, so that n = 128 does not overflow before the product does.
  VecI exponent = ((VecI)shifted - 0x4b400000 + 126) << 23;
  VecF result = p * (VecF)exponent * 2.0f;
  result = x < Set(-86.9f) ? VecF{} : result;
  result = x > Set(88.722839f) ? Set(__builtin_inff()) : result;
  return x == x ? result : x;
}

}  // namespace
}  // namespace kt::KT_ISA_NAMESPACE

#endif  // KT_KERNELS_CPU_SIMD_VEC_H_
