# SPDX-License-Identifier: Apache-2.0
"""Copies of a model's golden values (tests/data/models/README.md) with some of them left out or changed."""
import json
import shutil
import struct

FORMS = {"F32": "<f", "I32": "<i"}


class Golden:
    def __init__(self, directory):
        self.directory = directory
        with open(f"{directory}/golden.safetensors", "rb") as file:
            data = file.read()
        begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:begin])
        header.pop("__metadata__", None)
        self.entries = header
        self.tensors = {name: bytearray(data[begin + entry["data_offsets"][0]:begin + entry["data_offsets"][1]])
                        for name, entry in header.items()}

    def keep(self, condition):
        self.tensors = {name: data for name, data in self.tensors.items() if condition(name)}

    def change(self, name, index, change):
        """One value of a tensor."""
        form = FORMS[self.entries[name]["dtype"]]
        value, = struct.unpack_from(form, self.tensors[name], 4 * index)
        struct.pack_into(form, self.tensors[name], 4 * index, change(value))

    def write(self, directory):
        shutil.copy(f"{self.directory}/golden.json", directory)
        header, data = {}, b""
        for name, values in self.tensors.items():
            header[name] = {**self.entries[name], "data_offsets": [len(data), len(data) + len(values)]}
            data += values
        text = json.dumps(header).encode()
        with open(f"{directory}/golden.safetensors", "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text + data)
