#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint that computes exactly what another does, with more attention heads: the new ones have zero weights in q, k, v and zero columns in o.
So a model whose number of heads no tensor-parallel degree divides can be cut.

    tools/pad_heads.py --model DIR --out DIR --heads 12 --kv-heads 4      # of 9 and 3

Grouped-query attention with 16-bit weights in one model.safetensors, as the demo models have it; every other tensor is copied. Needs numpy."""
import argparse
import json
import os
import shutil
import struct
import sys

import numpy as np

FILE = 'model.safetensors'


def read(path):
    """[(name, entry, bytes)] in the file's order."""
    with open(path, 'rb') as file:
        (size,) = struct.unpack('<Q', file.read(8))
        header = json.loads(file.read(size))
    header.pop('__metadata__', None)
    data = np.memmap(path, np.uint8, 'r', offset=8 + size)
    for name, entry in sorted(header.items(), key=lambda item: item[1]['data_offsets']):
        yield name, entry, data[slice(*entry['data_offsets'])]


def padded(name, entry, data, rows, columns):
    """With zeros up to `rows` in front, or up to `columns` behind."""
    if entry['dtype'] not in ('BF16', 'F16'):
        sys.exit(f'{name}: {entry["dtype"]}; attention weights of 16 bits are needed')
    matrix = data.view(np.uint16).reshape(entry['shape'])
    old = matrix.shape
    out = np.zeros((rows or old[0], *((columns or old[1],) if len(old) == 2 else ())), np.uint16)
    out[tuple(slice(n) for n in old)] = matrix
    return list(out.shape), out.reshape(-1).view(np.uint8)


def write(path, tensors):
    header, end = {'__metadata__': {'format': 'pt'}}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [end, end + data.size]}
        end += data.size
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text)
        for _, _, _, data in tensors:
            file.write(data.tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--model', required=True)
    parser.add_argument('--out', required=True)
    parser.add_argument('--heads', type=int, required=True)
    parser.add_argument('--kv-heads', type=int, required=True)
    o = parser.parse_args()
    with open(os.path.join(o.model, 'config.json')) as file:
        config = json.load(file)
    heads, kv_heads = config['num_attention_heads'], config['num_key_value_heads']
    dim = config.get('head_dim') or config['hidden_size'] // heads
    if o.heads < heads or o.kv_heads < kv_heads or o.heads * kv_heads != o.kv_heads * heads:
        sys.exit(f'--heads {o.heads} --kv-heads {o.kv_heads}: more heads in the proportion of {heads} to {kv_heads} are needed')
    q, kv = o.heads * dim, o.kv_heads * dim
    sizes = {'q_proj': (q, None), 'k_proj': (kv, None), 'v_proj': (kv, None), 'o_proj': (None, q)}
    tensors = []
    for name, entry, data in read(os.path.join(o.model, FILE)):
        size = next((sizes[part] for part in name.split('.') if part in sizes), None)
        shape = entry['shape']
        if size is not None and not (name.endswith('bias') and size[0] is None):
            shape, data = padded(name, entry, data, *size)
        tensors.append((name, entry['dtype'], shape, data))
    shutil.copytree(o.model, o.out, ignore=shutil.ignore_patterns(FILE, '.*'), dirs_exist_ok=True)
    with open(os.path.join(o.out, 'config.json'), 'w') as file:
        json.dump({**config, 'num_attention_heads': o.heads, 'num_key_value_heads': o.kv_heads, 'head_dim': dim}, file, indent=1)
    write(os.path.join(o.out, FILE), tensors)


if __name__ == '__main__':
    main()
