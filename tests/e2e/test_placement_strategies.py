# SPDX-License-Identifier: Apache-2.0
"""Which experts live on the device changes no token in float32; what was recorded of one run places the next one's experts better."""
import json
import os
import random
import re

from server import SOURCE, Server, eventually, kt, model

NAME = "qwen3_moe"
FLAGS = ["--activation-dtype", "float32", "--kt-gpu-experts-ratio", 0.25]
COUNTS = os.path.join(SOURCE, "tests/data/expert_counts")


def generate(server):
    """Greedy tokens behind prompts of a few tokens only, so that some experts are used more than others."""
    draw = random.Random(3)
    prompts = [[draw.randrange(5, 12) for _ in range(20)] for _ in range(4)]
    answer = server.post("/v1/completions", {"prompt": prompts, "max_tokens": 12, "temperature": 0, "logprobs": 1})
    return [choice["logprobs"]["tokens"] for choice in sorted(answer["choices"], key=lambda choice: choice["index"])]


def residents(*flags):
    done = kt("run", model(NAME), "--print-config", *FLAGS, *flags)
    assert done.returncode == 0, done.stderr
    return {layer["layer"]: layer["experts"] for layer in json.loads(done.stdout)["experts"]["residents"]}


def hit_rate(server):
    return server.get("/health?verbose=1").json()["experts_on_device"]["hit_rate"]


def test_strategies_and_statistics(tmp_path):
    with Server(model(NAME), *FLAGS, "--expert-distribution-recorder-dir", tmp_path) as server:
        assert server.get("/dump_expert_distribution_record").error()["code"] == "failed_precondition"
        assert server.ask("POST", "/start_expert_distribution_record").status == 200
        tokens = generate(server)
        assert server.get("/stop_expert_distribution_record").status == 200
        uniform = hit_rate(server)
        dump = server.ask("POST", "/dump_expert_distribution_record").body.decode()
        path = re.search(r" (/\S+\.json)\n", dump)[1]
        assert os.path.dirname(path) == os.path.realpath(tmp_path)
        eventually(lambda: server.metrics()["expert_hits_total"] > 0, "metrics of experts")
        use = server.get("/health?verbose=1").json()["experts_on_device"]
        assert [use["hits"], use["misses"]] == [server.metrics()[f"expert_{kind}_total"] for kind in ("hits", "misses")]
        assert server.status()["health"]["experts_on_device"] == use
    with open(path) as file:
        record = json.load(file)
    layers = record["logical_count"]
    assert [use["hits"], use["misses"]] == [record["hits"], record["misses"]]
    assert sum(map(sum, layers)) == use["hits"] + use["misses"] > 0
    assert uniform == use["hits"] / (use["hits"] + use["misses"])

    for flags in (["--kt-expert-placement-strategy", "front-loading"], ["--kt-expert-placement-strategy", "random"]):
        with Server(model(NAME), *FLAGS, *flags) as server:
            assert generate(server) == tokens, flags
    with Server(model(NAME), *FLAGS, "--kt-expert-placement-strategy", "frequency", "--init-expert-location", path) as server:
        assert generate(server) == tokens
        frequency = hit_rate(server)
    assert frequency > 1.2 * uniform, (frequency, uniform)


def test_files_of_pytorch_place_alike():
    strategy = ["--kt-expert-placement-strategy", "frequency", "--init-expert-location"]
    placed = residents(*strategy, os.path.join(COUNTS, "counts.json"))
    assert sum(map(len, placed.values())) == 16
    assert placed != residents()
    for name in ("dict_int64.pt", "bare_int32.pt", "strided_float32.pt"):
        assert residents(*strategy, os.path.join(COUNTS, name)) == placed, name
    refused = kt("run", model(NAME), "--dry-run", *strategy, os.path.join(COUNTS, "refused/half.pt"))
    assert refused.returncode == 2 and "torch.HalfStorage" in refused.stderr
    other = kt("run", model("minimax_m2-fp8"), "--dry-run", *strategy, os.path.join(COUNTS, "dict_int64.pt"))
    assert other.returncode == 2 and "its counts are of 4 layers and 16 experts, the model has 3 layers" in other.stderr, other.stderr


def test_the_api_key_protects_recording():
    with Server(model(NAME), "--api-key", "secret") as server:
        for verb in ("start", "stop", "dump"):
            assert server.get(f"/{verb}_expert_distribution_record").status == 401
        assert server.get("/start_expert_distribution_record", {"Authorization": "Bearer secret"}).status == 200
