# SPDX-License-Identifier: Apache-2.0
"""Start, stop, death of processes, and the commands around a running server."""
import json
import os
import signal
import subprocess
import threading
import time

import pytest

from server import KT, Server, eventually, kt, model

INTERRUPTED = 130
COMPLETION = "/v1/completions"


class Stream(threading.Thread):
    """Reads a greedy stream in the background."""

    def __init__(self, server, max_tokens, prompt="The quick brown fox"):
        super().__init__()
        self.server, self.got, self.finish_reason, self.error = server, [], None, None
        self.request = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "logprobs": 0}

    def run(self):
        try:
            for event in self.server.stream(COMPLETION, self.request):
                choice = event["choices"][0]
                if choice["logprobs"]:
                    self.got += zip(choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"])
                self.finish_reason = choice["finish_reason"] or self.finish_reason
        except Exception as error:  # shown by result()
            self.error = error

    def begin(self, tokens=5):
        """Starts it and waits for the first tokens."""
        self.start()
        eventually(lambda: len(self.got) >= tokens or self.error, "first tokens")
        return self

    def result(self):
        self.join(120)
        assert not self.is_alive() and self.error is None, self.error
        assert self.finish_reason == "length" and len(self.got) == self.request["max_tokens"]
        return self.got


def undisturbed(server, max_tokens):
    stream = Stream(server, max_tokens)
    stream.start()
    return stream.result()


def test_start_of_demo():
    with Server(model("mirror")) as server:
        print(f"\ntime to ready: {server.seconds_to_ready:.2f} s")
        assert server.seconds_to_ready < 20


def test_tutorial_flags():
    """The tutorial's launch line without what this release refuses; flags without effect are named in the log with the reason."""
    directory = model("glm4_moe")
    flags = ["--kt-weight-path", directory, "--kt-cpuinfer", 2, "--kt-threadpool-count", 2, "--kt-num-gpu-experts", 15, "--kt-method", "BF16",
             "--kt-enable-dynamic-expert-update", "--attention-backend", "flashinfer", "--mem-fraction-static", "0.80",
             "--chunked-prefill-size", 16384, "--max-running-requests", 2, "--max-total-tokens", 32768, "--trust-remote-code",
             "--served-model-name", "GLM-4.7", "--enable-mixed-chunk", "--enable-p2p-check", "--disable-shared-experts-fusion",
             "--watchdog-timeout", 3000, "--fp8-gemm-backend", "triton", "--kt-expert-placement-strategy", "uniform"]
    with Server(directory, *flags) as server:
        assert server.get("/v1/models").json()["data"][0]["id"] == "GLM-4.7"
        for flag in ("--trust-remote-code", "--attention-backend", "--enable-p2p-check", "--fp8-gemm-backend", "--disable-shared-experts-fusion"):
            assert flag in server.log()
        warnings = server.get("/health?verbose=1").json()["warnings"]
        assert warnings and warnings[0] in server.log()  # more expert workers than NUMA nodes
        server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2})
        for event in server.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello!"}]}):
            break  # without max_tokens


def test_drains_on_sigterm():
    with Server(model("qwen3_moe")) as server:
        want = undisturbed(server, 400)
        stream = Stream(server, 400).begin()
        server.process.send_signal(signal.SIGTERM)
        assert stream.result() == want
        assert server.process.wait(30) == 0


def test_interrupt():
    with Server(model("qwen3_moe")) as server:
        server.exit_code = INTERRUPTED
        server.stop(signal.SIGINT)


@pytest.mark.parametrize("delay", [0.02, 0.05, 0.1, 0.2, 0.4])
def test_stopped_while_starting(tmp_path, delay):
    """At whatever point: no process dies of a signal of its own, and nothing stays."""
    server = subprocess.Popen([KT, "run", model("qwen3_moe"), "--port", "0", "--kt-cpuinfer", "2"], stderr=subprocess.PIPE, text=True,
                              env=dict(os.environ, XDG_RUNTIME_DIR=str(tmp_path)))
    time.sleep(delay)
    server.terminate()
    _, log = server.communicate(timeout=30)
    assert "signal 11" not in log and "signal 6" not in log, log
    assert os.listdir(tmp_path) == []


def test_second_signal_kills():
    with Server(model("qwen3_moe"), "--drain-timeout-ms", 60000) as server:
        stream = Stream(server, 4000).begin()
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        server.exit_code = INTERRUPTED
        server.stop(signal.SIGTERM, timeout=10)
        stream.join(10)
        assert stream.error is not None or len(stream.got) == 4000


@pytest.mark.parametrize("program", ["kt-cpu-expert-worker", "kt-gpu-worker"])
@pytest.mark.parametrize("flags", [(), ("--kt-threadpool-count", 2, "--kt-cpuinfer", 2), ("--expert-transport", "grpc")])
def test_worker_killed(program, flags):
    """The stream goes on with the same tokens and the same log-probabilities; status says what happened."""
    with Server(model("qwen3_moe"), *flags) as server:
        want = undisturbed(server, 1500)
        for _ in range(2):
            stream = Stream(server, 1500).begin()
            os.kill(server.pid_of(program), signal.SIGKILL)
            assert stream.result() == want
        eventually(lambda: server.get("/health").status == 200 and server.pid_of(program), server.log)
        dead = [p for p in server.status()["node"]["processes"] if p["restarts"]]
        assert sum(p["restarts"] for p in dead) == 2
        assert all(p["name"].startswith(program) and "signal 9" in p["last_exit"] for p in dead)


def test_coordinator_killed():
    """Its clients lose their connections; the port stays and answers again."""
    with Server(model("qwen3_moe")) as server:
        want = undisturbed(server, 50)
        stream = Stream(server, 3000).begin()
        os.kill(server.pid_of("kt-coordinator"), signal.SIGKILL)
        stream.join(60)
        eventually(lambda: server.get("/health").status == 200, server.log)
        assert undisturbed(server, 50) == want


def test_node_killed():
    """All its processes end; the next start removes what is left of its directory."""
    with Server(model("qwen3_moe")) as server:
        stream = Stream(server, 4000).begin()
        server.exit_code = -signal.SIGKILL
        server.stop(signal.SIGKILL)
        eventually(lambda: not server.processes(), lambda: f"{server.processes()} live on", 15)
        stream.join(10)
        selftest = kt("selftest", model("qwen3_moe"), runtime_dir=server.runtime_dir)
        assert selftest.returncode == 0, selftest.stderr


def test_status():
    with Server(model("qwen3_moe")) as server:
        run = server.status()
        assert run["node"]["address"] == f"127.0.0.1:{server.port}" and run["node"]["phase"] == "serving"
        assert {p["name"] for p in run["node"]["processes"]} == {"kt-coordinator", "kt-gpu-worker-0", "kt-cpu-expert-worker-0"}
        assert run["health"]["state"] == "ready"
        done = kt("status", "--runtime-dir", run["runtime_dir"])
        assert done.returncode == 0 and "serving" in done.stdout
    done = kt("status", "--runtime-dir", run["runtime_dir"])
    assert done.returncode == 1 and run["runtime_dir"] in done.stderr


def test_doctor():
    done = kt("doctor", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["ok"] else 1) and len(report["checks"]) > 5
    assert all({"subject", "level", "value", "advice"} == set(check) for check in report["checks"])


def test_version():
    done = kt("version")
    assert done.returncode == 0 and done.stdout.startswith("kt ")


@pytest.mark.parametrize("name", ["qwen3_moe", "mirror"])
def test_tokenize(name):
    text = "Hello, wörld! 你好 👩‍👩‍👧 <|im_end|>\n  x"
    ids = kt("tokenize", model(name), stdin=text)
    assert ids.returncode == 0 and ids.stdout == kt("tokenize", os.path.join(model(name), "tokenizer.json"), stdin=text).stdout
    assert kt("tokenize", model(name), "--decode", stdin=ids.stdout).stdout == text


def test_chat():
    """Piped: two questions, the second one with the first in its history."""
    with Server(model("mirror"), "--activation-dtype", "float32") as server:
        done = kt("chat", "--port", server.port, "--temperature", 0, "--max-tokens", 32, stdin="What is the capital of France?\n/history\n/quit\n")
        assert done.returncode == 0 and "The capital of France is Paris." in done.stdout, done.stdout + done.stderr


def test_print_config():
    done = kt("run", model("qwen3_moe"), "--print-config", "--kt-num-gpu-experts", 3)
    assert {tuple(layer["experts"]) for layer in json.loads(done.stdout)["experts"]["residents"]} == {(0, 1, 2)}
    dry = subprocess.run([KT, "run", model("qwen3_moe"), "--dry-run"], capture_output=True, text=True, timeout=30)
    assert dry.returncode == 0 and "kt-cpu-expert-worker" in dry.stdout
