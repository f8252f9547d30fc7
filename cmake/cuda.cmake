# SPDX-License-Identifier: Apache-2.0
# Sets KT_HAVE_CUDA and enables the CUDA language where nvcc is (PATH, /usr/local/cuda) and KT_CUDA is not OFF. Nothing newer than CUDA 12.4 is used.
set(KT_HAVE_CUDA OFF)
if(KT_CUDA STREQUAL "OFF")
  return()
endif()
find_program(KT_NVCC nvcc HINTS /usr/local/cuda/bin)
if(NOT KT_NVCC)
  if(KT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "KT_CUDA=ON, but nvcc is neither in PATH nor in /usr/local/cuda/bin: install the CUDA toolkit or set KT_CUDA=AUTO")
  endif()
  return()
endif()
# Of the architectures we serve, those this nvcc knows.
execute_process(COMMAND ${KT_NVCC} --list-gpu-arch OUTPUT_VARIABLE known_archs)
set(CMAKE_CUDA_ARCHITECTURES "")
foreach(arch 80 89 90 100 120)
  if(known_archs MATCHES "compute_${arch}\n")
    list(APPEND CMAKE_CUDA_ARCHITECTURES ${arch})
  endif()
endforeach()
set(CMAKE_CUDA_COMPILER ${KT_NVCC})
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")  # CMake 3.25 does not know that nvcc has it
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
list(APPEND CMAKE_CUDA_IMPLICIT_INCLUDE_DIRECTORIES /usr/include)  # named again as -isystem it would hide <math.h> from <cmath>
set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # targets name CUDA::cudart
find_package(CUDAToolkit REQUIRED)
set(KT_HAVE_CUDA ON)
message(STATUS "CUDA ${CMAKE_CUDA_COMPILER_VERSION} for sm_${CMAKE_CUDA_ARCHITECTURES}")
