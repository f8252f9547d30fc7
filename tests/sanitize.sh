#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sanitize.sh: what parses outside input, shares memory or runs threads, built and tested under ASan+UBSan and under TSan. The whole
# tree can be built so by `cmake --workflow --preset asan` (or tsan); this is what fits every test run.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../deploy/common.sh"

declare -A targets=(
  [asan]="json_test expert_ring_test expert_ring_fuzz scheduler_test safetensors_fuzz model_config_fuzz tokenizer_json_fuzz request_json_fuzz packed_matrix_test quantize_row_test gemm_test int8_gemm_test moe_ffn_test attention_test mla_test indexer_test delta_net_test stored_model_test tiktoken_fuzz prefix_cache_test scheduler_cache_test expert_counts_fuzz collective_test"
  [tsan]="expert_ring_test thread_pool_test scheduler_loop_test collective_test timeline_test"
)
for preset in asan tsan; do
  say "Testing under $preset"
  run "configuring" cmake --preset "$preset" -DKT_CUDA=OFF -DKT_BUILD_BENCHMARKS=OFF -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1"
  # shellcheck disable=SC2086
  run "building" cmake --build "build/$preset" --parallel "$(build_jobs)" --target ${targets[$preset]}
  ctest --test-dir "build/$preset" --output-on-failure --parallel 2 --tests-regex "^(${targets[$preset]// /|})\$"
done
