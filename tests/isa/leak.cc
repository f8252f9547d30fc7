// SPDX-License-Identifier: Apache-2.0
// Compiled with AVX2 although its name states no instruction set: what check_registers.py must
// refuse.
namespace kt {

void Leak(float* x) {
  for (int i = 0; i < 8; ++i) x[i] += 1.0f;
}

}  // namespace kt
