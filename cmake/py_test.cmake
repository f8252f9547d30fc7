# SPDX-License-Identifier: Apache-2.0
# kt_py_test(NAME n SRC file.py [LABELS slow ...] [TIMEOUT seconds])   pytest file of the current folder, registered with ctest
#
# It finds the programs in $KT_BIN_DIR, the tree in $KT_SOURCE_DIR and the demo models (smol-moe-VARIANT) in
# $KT_MODELS_DIR. Needs what tests/prepare.sh makes; its packages stand in tests/requirements.txt. Two cores are reserved for
# it, because such a test starts servers.
function(kt_py_test)
  if(NOT KT_BUILD_TESTS)
    return()
  endif()
  cmake_parse_arguments(A "" "NAME;SRC;TIMEOUT" "LABELS" ${ARGN})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300)
  endif()
  add_test(NAME ${A_NAME} COMMAND ${CMAKE_SOURCE_DIR}/tests/py_test.sh ${CMAKE_CURRENT_SOURCE_DIR}/${A_SRC})
  set_tests_properties(${A_NAME} PROPERTIES
    TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}" PROCESSORS 2
    ENVIRONMENT "KT_BIN_DIR=${CMAKE_RUNTIME_OUTPUT_DIRECTORY};KT_SOURCE_DIR=${CMAKE_SOURCE_DIR};KT_MODELS_DIR=${CMAKE_SOURCE_DIR}/build/models")
endfunction()
