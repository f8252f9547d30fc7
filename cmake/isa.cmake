# SPDX-License-Identifier: Apache-2.0
# Per-file instruction-set flags. The rest of the build is plain x86-64: an ISA file includes only
# <immintrin.h> and plain structs, so that no inline function shared with baseline code is emitted in its wider form.
set(KT_ISA_FLAGS_avx2 -mavx2 -mfma -mf16c -mbmi2)
set(KT_ISA_FLAGS_avx512f ${KT_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
set(KT_ISA_FLAGS_avx512bf16 ${KT_ISA_FLAGS_avx512f} -mavx512bf16 -mavx512vbmi -mavx512vnni)

# kt_isa_sources(avx512bf16 a.cc b.cc): sets the flags of that row on these files of the current folder.
function(kt_isa_sources isa)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${KT_ISA_FLAGS_${isa}}")
endfunction()
