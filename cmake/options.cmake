# SPDX-License-Identifier: Apache-2.0
# Build-wide options and compiler settings. Instruction-set flags are per file (isa.cmake), never here.
option(KT_BUILD_TESTS "Build unit and end-to-end tests" ON)
option(KT_BUILD_BENCHMARKS "Build micro-benchmarks" ON)
option(KT_BUILD_FUZZERS "Build libFuzzer targets (clang only); every target is also a test over its corpus" OFF)
set(KT_SANITIZE "" CACHE STRING "Sanitizers for the whole build: address,undefined or thread")
set(KT_CUDA "AUTO" CACHE STRING "Compile the CUDA device: AUTO (where nvcc is found), ON or OFF")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

# -O3 gains nothing measurable over -O2 here (kernels are written in intrinsics) and brings false alarms of gcc 12.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")

find_program(KT_CCACHE ccache)
if(KT_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${KT_CCACHE})
endif()
find_program(KT_MOLD mold)
if(KT_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
if(KT_SANITIZE)
  add_compile_options(-fsanitize=${KT_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${KT_SANITIZE})
endif()
