#!/usr/bin/env python3
"""Writes a GGUF of random weights: a model to time and compare on machines that cannot fetch one.

Usage: random-gguf.py FILE [--size tiny|small|1b|8b] [--type f16|q8_0|q4_k] [--seed N]

A llama-architecture decoder with a byte-level tokenizer. It babbles, but reads as many bytes per token as a
real model of its size, and every device must babble the same. Needs numpy. Same arguments, same file.
"""

import argparse
import struct

import numpy as np

# Layers, hidden, query heads, key-value heads, feed-forward, vocabulary; head size is hidden / heads.
SIZES = {
    "tiny": (2, 256, 4, 2, 512, 512),
    "small": (12, 768, 12, 4, 2048, 8192),
    "1b": (16, 2048, 32, 8, 8192, 32768),
    "8b": (32, 4096, 32, 8, 14336, 128256),
}
U32, F32, STR, ARRAY, I32 = 4, 6, 8, 9, 5
TYPES = {"f32": (0, 1, 4), "f16": (1, 1, 2), "q8_0": (8, 32, 34), "q4_k": (12, 256, 144)}  # id, block, bytes
ALIGNMENT = 32
END = 256  # the end token, after the 256 bytes


def text(value):
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def field(key, kind, value):
    pack = {U32: lambda v: struct.pack("<I", v), I32: lambda v: struct.pack("<i", v), F32: lambda v: struct.pack("<f", v), STR: text}
    if isinstance(value, list):
        return text(key) + struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(map(pack[kind], value))
    return text(key) + struct.pack("<I", kind) + pack[kind](value)


def byte_tokens():
    """The 256 printable stand-ins of GPT-2's byte-level alphabet, by byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    return [chr(b if b in printable else next(shifted)) for b in range(256)]


def weights(rng, kind, rows, columns, std):
    """Random blocks of the type itself (nothing is quantised), about normal in effect, `std` wide."""
    count = rows * columns
    if kind == "f32":
        return np.ones(count, "<f4").tobytes()
    if kind == "f16":
        return (rng.standard_normal(count, dtype=np.float32) * std).astype("<f2").tobytes()
    _, block, size = TYPES[kind]
    data = rng.integers(0, 256, (count // block, size), dtype=np.uint8)
    if kind == "q8_0":  # d, 32 signed bytes of width 73.9
        data[:, 0:2] = np.frombuffer(np.float16(std / 73.9).tobytes(), np.uint8)
    else:  # d, dmin, 6-bit scales and minima, 4-bit values: d * s * q - dmin * m; 7.5 centres q
        d = std / 258.5
        data[:, 0:4] = np.frombuffer(np.array([d, 7.5 * d], "<f2").tobytes(), np.uint8)
    return data.tobytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--type", choices=["f16", "q8_0", "q4_k"], default="f16")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    layers, hidden, heads, kv_heads, ffn, vocab = SIZES[args.size]
    kv = hidden // heads * kv_heads
    rng = np.random.default_rng(args.seed)

    matrices = [("token_embd.weight", vocab, hidden, 1.0)]
    for i in range(layers):
        blk = f"blk.{i}."
        matrices += [(blk + "attn_norm.weight", 1, hidden, None), (blk + "ffn_norm.weight", 1, hidden, None)]
        for name, rows, columns in [
            ("attn_q", hidden, hidden), ("attn_k", kv, hidden), ("attn_v", kv, hidden), ("attn_output", hidden, hidden),
            ("ffn_gate", ffn, hidden), ("ffn_up", ffn, hidden), ("ffn_down", hidden, ffn),
        ]:
            matrices.append((f"{blk}{name}.weight", rows, columns, columns**-0.5))
    # A wide head keeps the two best tokens apart, so that devices agree unless one of them is wrong.
    matrices += [("output_norm.weight", 1, hidden, None), ("output.weight", vocab, hidden, 4 * hidden**-0.5)]

    tokens = byte_tokens() + ["<|end|>"] + [f"<unused{i}>" for i in range(vocab - 257)]
    # "Ġ t" is the one merge, for readers that refuse a tokenizer without any.
    tokens[257] = "Ġt"
    kinds = [1] * 256 + [3, 1] + [5] * (vocab - 258)
    fields = [
        field("general.architecture", STR, "llama"),
        field("general.name", STR, f"random {args.size} {args.type}"),
        field("llama.block_count", U32, layers),
        field("llama.context_length", U32, 4096),
        field("llama.embedding_length", U32, hidden),
        field("llama.feed_forward_length", U32, ffn),
        field("llama.attention.head_count", U32, heads),
        field("llama.attention.head_count_kv", U32, kv_heads),
        field("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        field("llama.rope.freq_base", F32, 10000.0),
        field("llama.rope.dimension_count", U32, hidden // heads),
        field("llama.vocab_size", U32, vocab),
        field("tokenizer.ggml.model", STR, "gpt2"),
        field("tokenizer.ggml.pre", STR, "gpt-2"),
        field("tokenizer.ggml.tokens", STR, tokens),
        field("tokenizer.ggml.token_type", I32, kinds),
        field("tokenizer.ggml.merges", STR, ["Ġ t"]),
        field("tokenizer.ggml.bos_token_id", U32, END),
        field("tokenizer.ggml.eos_token_id", U32, END),
    ]
    infos, offset, plan = [], 0, []
    for name, rows, columns, std in matrices:
        kind = "f32" if std is None else args.type
        number, block, size = TYPES[kind]
        shape = struct.pack("<IQ", 1, columns) if std is None else struct.pack("<IQQ", 2, columns, rows)
        infos.append(text(name) + shape + struct.pack("<IQ", number, offset))
        length = rows * columns // block * size
        plan.append((name, kind, rows, columns, std))
        offset += -(-length // ALIGNMENT) * ALIGNMENT
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(fields)) + b"".join(fields) + b"".join(infos)
    with open(args.file, "wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        for name, kind, rows, columns, std in plan:
            data = bytearray(weights(rng, kind, rows, columns, std))
            if name == "output.weight":  # the end token is never the best: every run is as long as asked for
                row = len(data) // rows
                data[END * row : (END + 1) * row] = bytes(row)
            file.write(data + bytes(-len(data) % ALIGNMENT))
    print(f"{args.file}: {offset / 1e6:.1f} MB of weights, {args.size} {args.type}, seed {args.seed}")


main()
