# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share: `kt` as a command, and `kt run` as a context manager that looks for leaks when it stops.

    with Server(model("qwen3_moe"), "--activation-dtype", "float32") as server:
        server.post("/v1/completions", {"prompt": "Hello", "max_tokens": 4})
"""
import glob
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

BIN = os.environ["KT_BIN_DIR"]
SOURCE = os.environ["KT_SOURCE_DIR"]
MODELS = os.environ["KT_MODELS_DIR"]
KT = os.path.join(BIN, "kt")
# Every model, type and placement instead of one of each kind, which fits every test run, and an emulated NUMA machine.
EVERYTHING = bool(os.environ.get("KT_TEST_EVERYTHING"))
GOLDENS = os.path.join(SOURCE, "tests/data/smol-moe")


def model(name):
    """Directory of a tiny model of tests/data/models or of a demo model (mirror, bf16, fp8-block, fp8-channel, int4)."""
    tiny = os.path.join(SOURCE, "tests/data/models", name)
    return tiny if os.path.isdir(tiny) else os.path.join(MODELS, f"smol-moe-{name}")


def golden_chats(name):
    with open(os.path.join(GOLDENS, f"golden-{name}.json")) as file:
        return json.load(file)


def kt(*args, stdin="", timeout=240, runtime_dir=None):
    """Runs a command of kt to its end, in a runtime directory of its own where none is given: exit code, stdout and stderr."""
    with tempfile.TemporaryDirectory(prefix="kt-e2e-", dir="/tmp") as own_dir:
        environment = dict(os.environ, XDG_RUNTIME_DIR=runtime_dir or own_dir)
        done = subprocess.run([KT, *map(str, args)], input=stdin, capture_output=True, text=True, timeout=timeout, env=environment)
        assert os.listdir(own_dir) == [], f"kt {args[0]} left its runtime directory"
    return done


def eventually(condition, what, seconds=30):
    """Waits until condition() is true."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"not within {seconds} s: {what() if callable(what) else what}"
        time.sleep(0.02)


def stat(pid):
    """The fields of /proc/PID/stat after the name, [0] is the state; None: there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(") ", 1)[1].split()
    except OSError:
        return None


class Answer:
    """A whole HTTP answer."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def error(self):
        """The error object, after a check of its shape."""
        error = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"} and error["message"] and error["code"], error
        return error


def events(response):
    """The JSON events of a server-sent stream, without [DONE], which must be the last one."""
    last = None
    for line in response:
        if line.startswith(b"data: "):
            assert last != b"[DONE]", line
            last = line[6:].strip()
            if last != b"[DONE]":
                yield json.loads(last)
    assert last == b"[DONE]", last


class Server:
    """`kt run MODEL_DIR FLAGS...` on a free port of 127.0.0.1, its log in a file, its runtime directory in one of its own."""

    live = []  # those that run, for the report of a failed test

    def __init__(self, model_dir, *flags):
        self.model_dir, self.flags = model_dir, [str(flag) for flag in flags]
        self.exit_code = 0  # expected from a stop

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="kt-e2e-", dir="/tmp")
        self.runtime_dir = os.path.join(self.dir, "run")
        os.mkdir(self.runtime_dir)
        self.log_path = os.path.join(self.dir, "log")
        command = [KT, "run", self.model_dir, "--host", "127.0.0.1", "--port", "0", "--enable-metrics", *self.flags]
        began = time.monotonic()
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                                            env=dict(os.environ, XDG_RUNTIME_DIR=self.runtime_dir))
        Server.live.append(self)
        try:
            eventually(self._is_ready, lambda: f"ready line\n{self.log()}", 120)
            self.seconds_to_ready = time.monotonic() - began
            assert self.get("/health").status == 200
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind, value, traceback):
        if kind is not None:
            self._kill()
            return
        try:
            if self.process.poll() is None:
                self.stop()
            self.check_nothing_left()
        finally:
            self._kill()

    def _is_ready(self):
        code = self.process.poll()
        assert code is None, f"kt run ended with {code} before it was ready:\n{self.log()}"
        ready = re.search(r"^ready: http://127\.0\.0\.1:(\d+)/v1 ", self.log(), re.MULTILINE)
        if ready:
            self.port = int(ready[1])
        return ready is not None

    def _kill(self):
        if self in Server.live:
            Server.live.remove(self)
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def stop(self, with_signal=signal.SIGTERM, timeout=60):
        self.process.send_signal(with_signal)
        code = self.process.wait(timeout)
        assert code == self.exit_code, f"exit code {code} after signal {with_signal}:\n{self.log()}"

    def check_nothing_left(self):
        """After the end: no process of the session, no runtime directory, no socket in it."""
        left = {pid: stat(pid) for pid in self.processes()}
        assert not left, f"processes left: {left}\n{self.log()}"
        assert os.listdir(self.runtime_dir) == []

    def log(self):
        with open(self.log_path, errors="replace") as file:
            return file.read()

    def processes(self):
        """Pids of all living processes of this server: they share its session."""
        pids = [int(path.split("/")[2]) for path in glob.glob("/proc/[0-9]*/stat")]
        stats = {pid: stat(pid) for pid in pids}
        return [pid for pid, s in stats.items() if s and int(s[3]) == self.process.pid and s[0] != "Z"]

    def pid_of(self, name):
        """The pid of the first process with this program name (15 characters at most in the kernel's table)."""
        for pid in sorted(self.processes()):
            try:
                with open(f"/proc/{pid}/comm") as file:
                    if file.read().strip() == name[:15]:
                        return pid
            except OSError:
                pass
        return None

    # HTTP -------------------------------------------------------------------------------------------------------------------

    def connect(self, timeout=120):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None):
        """Body: bytes are sent as they are, anything else as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        connection = self.connect()
        try:
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def get(self, path, headers=None):
        return self.ask("GET", path, headers=headers)

    def post(self, path, body):
        """The JSON of an answer that must be good."""
        answer = self.ask("POST", path, body)
        assert answer.status == 200, answer.body
        return answer.json()

    def stream(self, path, body):
        """Yields the events of a streamed answer."""
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            yield from events(response)
        finally:
            connection.close()

    def metrics(self):
        """The values of /metrics without labels of their own, by name without the prefix kt:."""
        text = self.get("/metrics").body.decode()
        return {name: float(value) for name, value in re.findall(r'^kt:(\w+)\{model_name="[^"]*"\} (\S+)$', text, re.MULTILINE)}

    def state(self):
        """The scheduler's figures, as of now (/metrics is renewed once a second)."""
        return self.get("/server_info").json()["internal_states"][0]

    def status(self):
        """What `kt status` says about this server; others may run on the machine."""
        runs = json.loads(kt("status", "--json", runtime_dir=self.runtime_dir).stdout)
        (mine,) = [run for run in runs if run["runtime_dir"].startswith(self.runtime_dir)]
        return mine
