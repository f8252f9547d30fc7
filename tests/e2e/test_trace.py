# SPDX-License-Identifier: Apache-2.0
"""kt trace: the spans of all processes on one clock, each layer's inside its step."""
import json
import subprocess
import threading

from server import KT, Server, eventually, kt, model


def test_spans_of_all_processes(tmp_path):
    out = tmp_path / "trace.json"
    with Server(model("qwen3_moe"), "--kt-gpu-experts-ratio", 0.5, "--kt-threadpool-count", 2, "--kt-cpuinfer", 2) as server:
        stop = threading.Event()

        def load():
            while not stop.is_set():
                server.post("/v1/completions", {"prompt": [7] * 40, "max_tokens": 8})

        thread = threading.Thread(target=load)
        thread.start()
        try:
            done = kt("trace", "--runtime-dir", server.status()["runtime_dir"], "--seconds", 1.5, "--out", out)
        finally:
            stop.set()
            thread.join()
        assert done.returncode == 0, done.stderr
    with open(out) as file:
        events = json.load(file)["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert sorted(names.values()) == ["kt-coordinator", "kt-cpu-expert-worker-0", "kt-cpu-expert-worker-1", "kt-gpu-worker-0"]
    spans = {}
    for event in events:
        if event["ph"] == "X":
            spans.setdefault((names[event["pid"]], event["name"]), []).append(event)
    for worker in (0, 1):
        assert spans[f"kt-cpu-expert-worker-{worker}", "experts"]
    steps = spans["kt-gpu-worker-0", "step"]
    inside = lambda inner, outer: outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1
    whole = [step for step in steps if any(inside(step, sent) for sent in spans["kt-coordinator", "step"])]
    assert len(whole) >= len(steps) - 2, "a rank's step lies within the coordinator's"
    some = whole[len(whole) // 2]
    layers = [event["args"]["layer"] for event in spans["kt-gpu-worker-0", "attention"] if inside(event, some)]
    assert layers == list(range(len(layers))) and layers


def test_bad_use(tmp_path):
    done = kt("trace", "--runtime-dir", tmp_path, "--out", tmp_path / "trace.json")
    assert done.returncode == 1 and "kt trace: " in done.stderr
    with Server(model("qwen3_moe")) as server:
        directory = server.status()["runtime_dir"]
        done = kt("trace", "--runtime-dir", directory, "--seconds", 0, "--out", tmp_path / "trace.json")
        assert done.returncode == 2 and "seconds is 0" in done.stderr, done.stderr
        both = [subprocess.Popen([KT, "trace", "--runtime-dir", directory, "--seconds", "60", "--out", tmp_path / f"{i}.json"], stderr=subprocess.PIPE,
                                 text=True) for i in range(2)]
        eventually(lambda: any(p.poll() is not None for p in both), "one of two is refused")
        (refused,) = [p for p in both if p.poll() is not None]
        assert refused.returncode == 1 and "is being recorded" in refused.stderr.read()
        for p in both:  # the recording ends with its client
            p.terminate()
            p.wait()
        eventually(lambda: kt("trace", "--runtime-dir", directory, "--seconds", 0.02, "--out", tmp_path / "trace.json").returncode == 0, "free again")
