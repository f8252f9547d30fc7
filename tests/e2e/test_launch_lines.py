# SPDX-License-Identifier: Apache-2.0
"""The launch lines that users have from the tutorials of today's system start here and answer: every flag as it is there, but for paths and
numbers of ranks and threads."""
import pytest

from server import Server, eventually, model

COMMON = ("--kt-enable-dynamic-expert-update --attention-backend flashinfer --chunked-prefill-size 16384 --trust-remote-code "
          "--enable-mixed-chunk --enable-p2p-check --kt-threadpool-count 2 --kt-cpuinfer 2 --tensor-parallel-size 2")
LINES = {
    "glm4_moe": "--kt-num-gpu-experts 15 --kt-method BF16 --mem-fraction-static 0.80 --max-running-requests 2 --max-total-tokens 32768 "
                "--served-model-name GLM-4.7 --disable-shared-experts-fusion --tool-call-parser glm47 --reasoning-parser glm45 "
                "--watchdog-timeout 3000 --kt-gpu-prefill-token-threshold 1024",
    "glm4_moe-fp8": "--kt-num-gpu-experts 80 --kt-method FP8_PERCHANNEL --mem-fraction-static 0.75 --max-running-requests 4 "
                    "--max-total-tokens 100000 --served-model-name GLM-4.7 --disable-shared-experts-fusion --watchdog-timeout 3000 "
                    "--fp8-gemm-backend triton --kt-gpu-prefill-token-threshold 2048",
    "qwen3_moe-tp8-fp8": "--kt-num-gpu-experts 20 --kt-method FP8 --kt-expert-placement-strategy uniform --mem-fraction-static 0.80 "
                         "--max-running-requests 4 --max-total-tokens 100000 --served-model-name Qwen3-235B-A22B "
                         "--kt-gpu-prefill-token-threshold 2048",
}


@pytest.mark.parametrize("name", LINES)
def test_starts_and_answers(name):
    flags = f"--kt-weight-path {model(name)} {COMMON} {LINES[name]}".split()
    with Server(model(name), *flags) as server:
        for length in (20, 3000):  # hybrid and layerwise
            usage = server.post("/v1/completions", {"prompt": [7 + i % 400 for i in range(length)], "max_tokens": 8, "ignore_eos": True})["usage"]
            assert usage["completion_tokens"] == 8, usage
        eventually(lambda: server.state()["layerwise"]["steps"] >= 1, server.state)  # may lag the answer
