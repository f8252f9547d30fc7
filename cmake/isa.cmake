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

# kt_isa_library(NAME n SRCS n.cc ISA_SRCS n_isa.cc HDRS ... DEPS ...): a kt_cc_library whose ISA_SRCS are compiled once per row
# (scalar, avx2, avx512f) with that row's flags and its name in KT_ISA_NAMESPACE. Contraction is off: fused products are written as such.
function(kt_isa_library)
  cmake_parse_arguments(A "" "NAME" "SRCS;ISA_SRCS;HDRS;DEPS" ${ARGN})
  kt_cc_library(NAME ${A_NAME} SRCS ${A_SRCS} HDRS ${A_HDRS} DEPS ${A_DEPS})
  foreach(isa scalar avx2 avx512f)
    add_library(kt_${A_NAME}_${isa} OBJECT ${A_ISA_SRCS})
    target_include_directories(kt_${A_NAME}_${isa} PRIVATE ${CMAKE_SOURCE_DIR})
    target_compile_options(kt_${A_NAME}_${isa} PRIVATE ${KT_WARNINGS} -ffp-contract=off ${KT_ISA_FLAGS_${isa}})
    target_compile_definitions(kt_${A_NAME}_${isa} PRIVATE KT_ISA_NAMESPACE=${isa})
    target_sources(kt_${A_NAME} PRIVATE $<TARGET_OBJECTS:kt_${A_NAME}_${isa}>)
  endforeach()
endfunction()
