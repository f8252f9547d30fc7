#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a Qwen3-MoE checkpoint of any size with random weights, one file a layer, for measurements where only sizes matter. All BF16, or routed experts
in INT4 (compressed-tensors pack-quantized, group 32).

    tools/make_synthetic_moe.py --out DIR --layers 2        # 1.4 GB, half a minute

Weights depend on the options and the tensor's name only. The tokenizer has the 256 bytes and an end token; the text a model generates is noise.
Needs numpy."""
import argparse
import hashlib
import json
import os
import struct

import numpy as np

STD = 0.02
BF16_ONE = 0x3F80
BYTES = {'BF16': 2, 'I32': 4, 'I64': 8}
END = 256  # id of the end token
CHAT = ("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}")


def draw(name, shape):
    seed = int.from_bytes(hashlib.sha256(f'{name} {shape}'.encode()).digest()[:8], 'little')
    return np.random.Generator(np.random.SFC64(seed))


# Each gives [(name, dtype, shape, function that makes the array)].

def bf16(name, shape):
    """Ones for a norm, else normal values, cut off and not rounded."""
    def make():
        if name.endswith('norm.weight'):
            return np.full(shape, BF16_ONE, np.uint16)
        x = draw(name, shape).standard_normal(shape, np.float32)
        return ((x * np.float32(STD)).view(np.uint32) >> 16).astype(np.uint16)
    return [(name, 'BF16', shape, make)]


def int4(name, shape):
    """Codes of all kinds, every scale 1/256."""
    rows, columns = shape
    packed, scales = (rows, columns // 8), (rows, columns // 32)
    return [(name + '_packed', 'I32', packed, lambda: draw(name, packed).integers(0, 1 << 32, packed, np.uint32)),
            (name + '_scale', 'BF16', scales, lambda: np.full(scales, BF16_ONE - (8 << 7), np.uint16)),
            (name + '_shape', 'I64', (2,), lambda: np.array(shape, np.int64))]


def outer_tensors(o):
    yield from bf16('model.embed_tokens.weight', (o.vocab, o.hidden))
    yield from bf16('model.norm.weight', (o.hidden,))
    yield from bf16('lm_head.weight', (o.vocab, o.hidden))


def layer_tensors(o, layer):
    p = f'model.layers.{layer}.'
    expert = {'bf16': bf16, 'int4': int4}[o.format]
    q, kv = o.heads * o.head_dim, o.kv_heads * o.head_dim
    yield from bf16(p + 'input_layernorm.weight', (o.hidden,))
    yield from bf16(p + 'post_attention_layernorm.weight', (o.hidden,))
    yield from bf16(p + 'self_attn.q_proj.weight', (q, o.hidden))
    yield from bf16(p + 'self_attn.k_proj.weight', (kv, o.hidden))
    yield from bf16(p + 'self_attn.v_proj.weight', (kv, o.hidden))
    yield from bf16(p + 'self_attn.o_proj.weight', (o.hidden, q))
    yield from bf16(p + 'self_attn.q_norm.weight', (o.head_dim,))
    yield from bf16(p + 'self_attn.k_norm.weight', (o.head_dim,))
    yield from bf16(p + 'mlp.gate.weight', (o.experts, o.hidden))
    for e in range(o.experts):
        yield from expert(f'{p}mlp.experts.{e}.gate_proj.weight', (o.inter, o.hidden))
        yield from expert(f'{p}mlp.experts.{e}.up_proj.weight', (o.inter, o.hidden))
        yield from expert(f'{p}mlp.experts.{e}.down_proj.weight', (o.hidden, o.inter))


def write_shard(path, tensors):
    """Returns the bytes of its tensors."""
    header, end = {'__metadata__': {'format': 'pt'}}, 0
    for name, dtype, shape, _ in tensors:
        begin, end = end, end + BYTES[dtype] * int(np.prod(shape))
        header[name] = {'dtype': dtype, 'shape': shape, 'data_offsets': [begin, end]}
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as file:
        file.write(struct.pack('<Q', len(text)) + text)
        for _, _, _, make in tensors:
            file.write(make().tobytes())
    return end


def config(o):
    c = {'architectures': ['Qwen3MoeForCausalLM'], 'model_type': 'qwen3_moe', 'attention_bias': False, 'attention_dropout': 0.0,
         'bos_token_id': END, 'eos_token_id': END, 'decoder_sparse_step': 1, 'head_dim': o.head_dim, 'hidden_act': 'silu',
         'hidden_size': o.hidden, 'initializer_range': STD, 'intermediate_size': o.inter * 8, 'max_position_embeddings': 32768,
         'mlp_only_layers': [], 'moe_intermediate_size': o.inter, 'norm_topk_prob': True, 'num_attention_heads': o.heads,
         'num_experts': o.experts, 'num_experts_per_tok': o.topk, 'num_hidden_layers': o.layers, 'num_key_value_heads': o.kv_heads,
         'rms_norm_eps': 1e-6, 'rope_theta': 1000000.0, 'rope_scaling': None, 'sliding_window': None, 'use_sliding_window': False,
         'tie_word_embeddings': False, 'torch_dtype': 'bfloat16', 'vocab_size': o.vocab}
    if o.format == 'int4':
        weights = {'num_bits': 4, 'type': 'int', 'symmetric': True, 'strategy': 'group', 'group_size': 32, 'dynamic': False}
        c['quantization_config'] = {'quant_method': 'compressed-tensors', 'format': 'pack-quantized', 'quantization_status': 'compressed',
                                    'ignore': ['lm_head', 're:.*self_attn.*', 're:.*mlp\\.gate$'],
                                    'config_groups': {'group_0': {'targets': ['Linear'], 'weights': weights}}}
    return c


def byte_alphabet():
    """The printable character that stands for each byte in byte-level BPE."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in shown]
    return {**{b: chr(b) for b in shown}, **{b: chr(256 + i) for i, b in enumerate(rest)}}


def tokenizer():
    alphabet = byte_alphabet()
    byte_level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': False, 'use_regex': False}
    end = {'id': END, 'content': '<|end|>', 'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False, 'special': True}
    return {'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': [end], 'normalizer': None, 'pre_tokenizer': byte_level,
            'post_processor': None, 'decoder': byte_level,
            'model': {'type': 'BPE', 'dropout': None, 'unk_token': None, 'continuing_subword_prefix': '', 'end_of_word_suffix': '',
                      'fuse_unk': False, 'byte_fallback': False, 'ignore_merges': False,
                      'vocab': {alphabet[b]: b for b in range(256)}, 'merges': []}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--out', required=True, help='folder to write to; made if absent, must be empty')
    for name, value in {'layers': 8, 'hidden': 2048, 'experts': 64, 'topk': 8, 'inter': 768, 'vocab': 16384, 'heads': 32, 'kv-heads': 4,
                        'head-dim': 128}.items():
        parser.add_argument(f'--{name}', type=int, default=value, help='default %(default)s')
    parser.add_argument('--format', default='bf16', choices=['bf16', 'int4'], help='of routed experts (default %(default)s)')
    o = parser.parse_args()
    if o.vocab <= END:
        parser.error(f'--vocab {o.vocab}: must be above {END}')
    os.makedirs(o.out, exist_ok=True)
    if os.listdir(o.out):
        parser.error(f'--out {o.out} is not empty')
    shards = [list(outer_tensors(o)), *(list(layer_tensors(o, layer)) for layer in range(o.layers))]
    total, weight_map = 0, {}
    for i, tensors in enumerate(shards, 1):
        name = f'model-{i:05d}-of-{len(shards):05d}.safetensors'
        total += write_shard(os.path.join(o.out, name), tensors)
        weight_map.update({tensor[0]: name for tensor in tensors})
    files = {'config.json': config(o), 'generation_config.json': {'bos_token_id': END, 'eos_token_id': END}, 'tokenizer.json': tokenizer(),
             'tokenizer_config.json': {'tokenizer_class': 'PreTrainedTokenizerFast', 'eos_token': '<|end|>', 'pad_token': '<|end|>',
                                       'model_max_length': 32768, 'chat_template': CHAT},
             'model.safetensors.index.json': {'metadata': {'total_size': total}, 'weight_map': weight_map}}
    for name, content in files.items():
        with open(os.path.join(o.out, name), 'w', encoding='utf-8') as file:
            json.dump(content, file, ensure_ascii=False, indent=1)


if __name__ == '__main__':
    main()
