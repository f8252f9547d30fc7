#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times MoE layers of kt-kernel's C++ classes and of `kt bench kernels` on the same weights, in turn, and prints how many times faster kt is.

    benchmarks/compare_kt_kernel.py --target build/venv-kt-kernel --kt build/release/bin/kt [--format bf16,int4-g32] [--shape qwen3-30b]

--target is a virtual environment, made where there is none, with kt-kernel from the package index (PIP_FIND_LINKS and the like apply). Its python
wrapper needs a GPU, so its C++ classes are driven directly; which class serves a method on this CPU is chosen as the wrapper does. A format that it
cannot run here, or that kt cannot, is listed with the reason.

Both draw random distinct experts for every token of every call and go through the layers in turn, so that weights come from memory. While one side
runs the other is stopped, since kt-kernel's idle threads spin. ms: best and median call of all rounds; ratio: of the best times per active expert, and
of the medians; difference: root mean square of kt's results minus kt-kernel's for the same rows, relative to kt's."""
import argparse
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import venv

PACKAGE = "kt-kernel==0.7.2"
SHAPES = {"qwen3-30b": (2048, 768, 128, 8), "deepseek-v3": (7168, 2048, 32, 8)}

# kt's format: kt-kernel's method, its classes by the wrapper's preference with the CPU flag each wants, how experts are stored, columns of a scale.
FORMATS = {
    "bf16": ("BF16", [("AMXBF16_MOE", ""), ("AVX2BF16_MOE", "")], "bf16", 0),
    "fp8-block": ("FP8", [("AMXFP8_MOE", ""), ("AVX2FP8_MOE", "")], "fp8-block", 128),
    "fp8-channel": ("FP8_PERCHANNEL", [("AMXFP8PerChannel_MOE", "")], "fp8-channel", 0),
    "int8": (None, [], "int8", 0),
    "int4-g32": ("RAWINT4", [("AMXInt4_KGroup_MOE", ""), ("AVXVNNI256RawInt4_MOE", "avx_vnni"), ("AVX2RawInt4_MOE", "")], "int4", 32),
    "int4-g128": ("RAWINT4", [("AMXInt4_KGroup_MOE", ""), ("AVXVNNI256RawInt4_MOE", "avx_vnni"), ("AVX2RawInt4_MOE", "")], "int4", 128),
    "mxfp4": ("MXFP4", [("AMXFP4_KGroup_MOE", ""), ("AVX2MXFP4_MOE", "")], "mxfp4", 32),
    "amxint8": ("AMXINT8", [("AMXInt8_MOE", "")], "bf16", 0),
    "amxint4": ("AMXINT4", [("AMXInt4_MOE", "")], "bf16", 0),
}
MATRICES = ("gate", "up", "down")


class CannotRun(Exception):
    """The reason, for the reader."""


def enter(target):
    """Goes on in the virtual environment, made first where there is none."""
    python = os.path.join(os.path.abspath(target), "bin", "python")
    if os.path.abspath(sys.executable) == python:
        return
    if not os.path.exists(python):
        venv.create(target, with_pip=True)
    probe = f"import importlib.metadata as m, numpy; assert 'kt-kernel==' + m.version('kt-kernel') == '{PACKAGE}'"
    if subprocess.run([python, "-c", probe], capture_output=True).returncode != 0:
        subprocess.run([python, "-m", "pip", "install", "--quiet", "numpy"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", PACKAGE], check=True)
    os.execv(python, [python, *sys.argv])


# Weights --------------------------------------------------------------------------------------------------------------------


def to_bf16(numpy, values):
    return (values.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)


def random_matrix(numpy, rng, kind, n, k, group):
    """Codes [n, bytes of a row] and scales [blocks, bytes of a row] or None, as bytes; values are about 0.02 in size."""
    if kind == "bf16":
        return to_bf16(numpy, rng.normal(0, 0.02, (n, k))).view(numpy.uint8), None
    codes = rng.integers(0, 256, (n, k // 2 if kind in ("int4", "mxfp4") else k), dtype=numpy.uint8)
    if kind.startswith("fp8"):
        codes[codes & 0x7F == 0x7F] ^= 1  # NaN
    shape = (-(-n // group), -(-k // group)) if kind == "fp8-block" else (n, -(-k // group) if group else 1)
    if kind == "mxfp4":
        return codes, rng.integers(119, 122, shape, dtype=numpy.uint8)
    size = {"fp8-block": 130, "fp8-channel": 130, "int8": 74, "int4": 4.6}[kind]
    scales = (0.02 / size * rng.uniform(0.5, 1.5, shape)).astype(numpy.float32)
    return codes, (scales if kind.startswith("fp8") else to_bf16(numpy, scales)).view(numpy.uint8)


def write_checkpoint(directory, kind, group, shape, layers):
    """Experts that are rotations of one: different, and quickly made. Those of a matrix lie one behind the other."""
    import numpy
    hidden, intermediate, experts, _ = shape
    rng = numpy.random.default_rng(1)
    parts = {m: random_matrix(numpy, rng, kind, *((hidden, intermediate) if m == "down" else (intermediate, hidden)), group) for m in MATRICES}
    header, writes, at = {}, [], 0
    for layer in range(layers):
        for matrix, (codes, scales) in parts.items():
            for suffix, data in (("weight", codes), ("weight_scale", scales)):
                for expert in range(experts if data is not None else 0):
                    name = f"model.layers.{layer}.mlp.experts.{expert}.{matrix}_proj.{suffix}"
                    header[name] = {"dtype": "U8", "shape": data.shape, "data_offsets": (at, at + data.nbytes)}
                    at += data.nbytes
                    writes.append((data, layer * experts + expert))
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 64)
    with open(os.path.join(directory, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for data, rotation in writes:
            first = rotation % data.shape[0]
            file.write(data[first:].data)
            file.write(data[:first].data)


def open_tensors(path):
    """name -> bytes, mapped."""
    import numpy
    whole = numpy.memmap(path, dtype=numpy.uint8, mode="r")
    length = int.from_bytes(whole[:8].tobytes(), "little")
    begin = 8 + length
    header = json.loads(whole[8:begin].tobytes())
    return {name: whole[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]] for name, t in header.items()}


# kt-kernel, in a process of its own -----------------------------------------------------------------------------------------


def load_extension():
    """The C++ module, without the wrapper around it (which needs torch and a GPU), and the name of its variant."""
    folder = importlib.util.find_spec("kt_kernel").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("kt_cpu_detect", os.path.join(folder, "_cpu_detect.py"))
    detect = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(detect)
    return detect.initialize()


def cpu_flags():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].split() for line in file if line.startswith("flags")), [])


class Peer:
    def __init__(self, name, shape, layers, threads, tokens_max, directory):
        import numpy
        self.numpy, self.shape = numpy, shape
        self.hidden, self.intermediate, self.experts, self.top_k = shape
        self.method, classes, self.kind, self.group = FORMATS[name]
        if self.method is None:
            raise CannotRun("it has no method for this format")
        extension, self.variant = load_extension()
        flags = cpu_flags()
        self.class_name = next((c for c, flag in classes if hasattr(extension.moe, c) and (not flag or flag in flags)), None)
        if self.class_name is None:
            raise CannotRun(f"{self.method}: its {self.variant} variant, which this CPU loads, has no {' or '.join(c for c, _ in classes)}")
        config = extension.WorkerPoolConfig()
        config.subpool_count, config.subpool_numa_map, config.subpool_thread_count = 1, [0], [threads]
        self.infer = extension.CPUInfer(config)
        self.tensors = open_tensors(os.path.join(directory, "model.safetensors"))  # some classes keep reading there
        self.identity = numpy.arange(self.experts, dtype=numpy.int64)
        self.on_gpu = numpy.zeros(self.experts, dtype=numpy.uint8)
        self.layers = [self.load(extension, layer, tokens_max) for layer in range(layers)]
        self.calls = 0
        self.rng = numpy.random.default_rng(2)

    def load(self, extension, layer, tokens_max):
        config = extension.moe.MOEConfig(self.experts, self.top_k, self.hidden, self.intermediate, self.on_gpu.ctypes.data)
        config.layer_idx, config.pool, config.max_len = layer, self.infer.backend_, tokens_max
        alive = []  # converted scales, until they are loaded

        def pointers(matrix, suffix):
            found = [self.tensors.get(f"model.layers.{layer}.mlp.experts.{e}.{matrix}_proj.{suffix}") for e in range(self.experts)]
            if found[0] is None:
                return [0] * self.experts
            if self.kind == "mxfp4" and suffix == "weight_scale":  # it takes powers of two as bf16
                found = [f.astype(self.numpy.uint16) << 7 for f in found]
                alive.extend(found)
            return [f.ctypes.data for f in found]

        for matrix in MATRICES:
            weights = pointers(matrix, "weight")
            if self.method.startswith("AMX"):  # quantised by it; the experts lie one behind the other
                setattr(config, f"{matrix}_proj", weights[0])
            else:
                setattr(config, f"{matrix}_projs", [weights])
                setattr(config, f"{matrix}_scales", [pointers(matrix, "weight_scale")])
        if self.kind != "bf16":
            config.quant_config.bits = 4 if self.kind in ("int4", "mxfp4") else 8
            config.quant_config.zero_point = False
            if self.kind == "fp8-channel":
                config.quant_config.per_channel = True
            else:
                config.quant_config.group_size = self.group
        moe = getattr(extension.moe, self.class_name)(config)
        self.infer.submit(moe.load_weights_task(self.identity.ctypes.data))
        self.infer.sync()
        return moe

    def run(self, layer, x, ids, weights):
        """x [tokens, hidden] bf16 as uint16, ids int64: seconds and the result [tokens, hidden] in fp32."""
        numpy = self.numpy
        tokens = numpy.array([len(x)], dtype=numpy.int32)
        y = numpy.zeros(x.shape, dtype=numpy.uint16)
        task = (tokens.ctypes.data, self.top_k, ids.ctypes.data, weights.ctypes.data, x.ctypes.data, y.ctypes.data, False)
        start = time.perf_counter()
        self.infer.submit(self.layers[layer].forward_task(*task))
        self.infer.sync()
        seconds = time.perf_counter() - start
        return seconds, (y.astype(numpy.uint32) << 16).view(numpy.float32)

    def measure(self, tokens, seconds):
        """[(seconds of a call, active experts)], two at least."""
        numpy, samples, spent = self.numpy, [], 0
        x = to_bf16(numpy, self.rng.normal(size=(tokens, self.hidden)))
        weights = numpy.full((tokens, self.top_k), 1 / self.top_k, dtype=numpy.float32)
        while spent < seconds or len(samples) < 2:
            ids = numpy.stack([self.rng.permutation(self.experts)[:self.top_k] for _ in range(tokens)]).astype(numpy.int64)
            self.calls += 1
            took, _ = self.run(self.calls % len(self.layers), x, ids, weights)
            spent += took
            samples.append((took, len(numpy.unique(ids))))
        return samples

    def check(self, dump, tokens):
        numpy = self.numpy
        tensors = open_tensors(dump)
        x = numpy.array(tensors[f"{tokens}.x"].view(numpy.uint16)).reshape(tokens, self.hidden)
        ids = numpy.array(tensors[f"{tokens}.ids"].view(numpy.int32)).astype(numpy.int64)
        weights = numpy.array(tensors[f"{tokens}.weights"].view(numpy.float32))
        theirs = self.run(0, x, ids, weights)[1].ravel().astype(numpy.float64)
        ours = numpy.array(tensors[f"{tokens}.y"].view(numpy.float32)).astype(numpy.float64)
        return float(numpy.sqrt(numpy.mean((ours - theirs)**2) / numpy.mean(ours**2)))


def peer_main(connection, *args):
    """Answers (method of Peer, its arguments) until the other end closes; the first message says what was loaded."""
    os.dup2(2, 1)  # what the extension prints
    try:
        peer = Peer(*args)
        connection.send({"method": peer.method, "class": peer.class_name, "variant": peer.variant})
        while True:
            name, *arguments = connection.recv()
            connection.send(getattr(peer, name)(*arguments))
    except EOFError:
        pass
    except Exception as error:  # of the extension: whatever it throws
        connection.send(CannotRun(str(error)))
    os._exit(0)  # its threads do not end


class PeerProcess:
    """Runs only while it is asked."""

    def __init__(self, *args):
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=peer_main, args=(other, *args), daemon=True)
        self.process.start()
        other.close()
        self.facts = self.receive()

    def receive(self):
        try:
            answer = self.connection.recv()
        except EOFError:
            self.process.join()
            code = self.process.exitcode
            raise CannotRun(f"its process ended with {signal.Signals(-code).name if code < 0 else code}") from None
        if isinstance(answer, Exception):
            raise answer
        os.kill(self.process.pid, signal.SIGSTOP)
        return answer

    def ask(self, *message):
        os.kill(self.process.pid, signal.SIGCONT)
        self.connection.send(message)
        return self.receive()

    def end(self):
        self.process.kill()
        self.process.join()


# Comparison -----------------------------------------------------------------------------------------------------------------


def run_kt(kt, name, shape, directory, tokens, threads, seconds, dump=None):
    command = [kt, "bench", "kernels", "--format", name, "--shape", "x".join(map(str, shape)), "--weights", directory, "--json",
               "--tokens", ",".join(map(str, tokens)), "--threads", str(threads), "--seconds", str(seconds)]
    done = subprocess.run(command + (["--dump", dump] if dump else []), capture_output=True, text=True)
    if done.returncode != 0:
        raise CannotRun((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    return {row["tokens"]: row for row in json.loads(done.stdout)}


def compare(options, name, shape, directory):
    """Rows of one format; raises CannotRun with whose fault it is."""
    _, _, kind, group = FORMATS[name]
    write_checkpoint(directory, kind, group, shape, options.layers)
    dump = os.path.join(directory, "dump.safetensors")
    try:
        run_kt(options.kt, name, shape, directory, options.tokens, options.threads, 0, dump)
    except CannotRun as reason:
        raise CannotRun(f"kt: {reason}") from None
    try:
        peer = PeerProcess(name, shape, options.layers, options.threads, max(options.tokens), directory)
        try:
            differences = {t: peer.ask("check", dump, t) for t in options.tokens}
            ours, theirs = {t: [] for t in options.tokens}, {t: [] for t in options.tokens}
            for _ in range(options.rounds):
                for tokens, row in run_kt(options.kt, name, shape, directory, options.tokens, options.threads, options.seconds).items():
                    ours[tokens].append(row)
                for tokens in options.tokens:
                    theirs[tokens] += peer.ask("measure", tokens, options.seconds)
        finally:
            peer.end()
    except CannotRun as reason:
        raise CannotRun(f"kt-kernel: {reason}") from None
    rows = []
    for tokens in options.tokens:
        samples = theirs[tokens]
        peer_median = statistics.median(s for s, _ in samples) * 1e3
        median = statistics.median(row["ms_median"] for row in ours[tokens])
        best = min(row["ms"] / row["active_experts"] for row in ours[tokens])
        rows.append({"format": name, "method": peer.facts["method"], "class": peer.facts["class"], "variant": peer.facts["variant"],
                     "shape": options.shape, "tokens": tokens, "threads": options.threads,
                     "kt_kernel_ms": min(s for s, _ in samples) * 1e3, "kt_kernel_ms_median": peer_median,
                     "kt_ms": min(row["ms"] for row in ours[tokens]), "kt_ms_median": median,
                     "ratio": min(s / active for s, active in samples) * 1e3 / best, "ratio_median": peer_median / median,
                     "difference": differences[tokens]})
    return rows


def print_row(row):
    print(f"{row['format']:<12} {row['class']:<22} {row['tokens']:>6} {row['threads']:>7} {row['kt_kernel_ms']:>10.3f} ({row['kt_kernel_ms_median']:>9.3f}) "
          f"{row['kt_ms']:>10.3f} ({row['kt_ms_median']:>9.3f}) {row['ratio']:>6.2f} ({row['ratio_median']:>5.2f}) {row['difference']:>10.5f}", flush=True)


def main():
    names = ", ".join(FORMATS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, metavar="DIR", help=f"virtual environment for {PACKAGE}")
    parser.add_argument("--kt", required=True, help="the program kt, of a release build")
    parser.add_argument("--format", default=",".join(FORMATS), help=f"of: {names} (default: all)")
    parser.add_argument("--shape", default="qwen3-30b", help=f"{', '.join(SHAPES)} or HIDDENxINTERMEDIATExEXPERTSxTOPK (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=3, help="layers that are gone through in turn (default: %(default)s)")
    parser.add_argument("--tokens", default="1,4,16,64,512", help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="of each side (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each number of tokens in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--work", metavar="DIR", help="where weights of one format at a time lie (default: a temporary directory)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    formats = options.format.split(",")
    for name in formats:
        if name not in FORMATS:
            parser.error(f"--format {name}: use {names}")
    try:
        shape = SHAPES.get(options.shape) or tuple(map(int, options.shape.split("x")))
        options.tokens = [int(t) for t in options.tokens.split(",")]
        hidden, intermediate, experts, top_k = shape
    except ValueError:
        parser.error("--shape takes HIDDENxINTERMEDIATExEXPERTSxTOPK, --tokens a list of numbers")
    if min(*shape, *options.tokens, options.layers, options.threads, options.rounds) < 1 or hidden % 128 or intermediate % 128 or top_k > experts:
        parser.error("hidden and intermediate must be multiples of 128, top-k no more than experts, and all numbers positive")
    enter(options.target)

    if not options.json:
        print(f"{'format':<12} {'class':<22} {'tokens':>6} {'threads':>7} {'kt-kernel ms (median)':>22} {'kt ms (median)':>22} {'ratio (median)':>14} difference")
    rows, not_run = [], {}
    for name in formats:
        directory = tempfile.mkdtemp(prefix="kt-compare-", dir=options.work)
        try:
            for row in compare(options, name, shape, directory):
                rows.append(row)
                if not options.json:
                    print_row(row)
        except CannotRun as reason:
            not_run[name] = str(reason)
            if not options.json:
                print(f"{name:<12} not run: {reason}", flush=True)
        finally:
            shutil.rmtree(directory)
    if options.json:
        print(json.dumps({"rows": rows, "not_run": not_run}, indent=1))


if __name__ == "__main__":
    main()
