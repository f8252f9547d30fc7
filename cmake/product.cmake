# SPDX-License-Identifier: Apache-2.0
# Target `product`: the programs of the runtime, without tests and benchmarks. Included when all folders are known.
add_custom_target(product)
foreach(program kt kt-node kt-coordinator kt-gpu-worker kt-cpu-expert-worker kt-template)
  if(TARGET ${program})
    add_dependencies(product ${program})
  endif()
endforeach()
