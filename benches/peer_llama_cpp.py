#!/usr/bin/env python3
"""Time llama.cpp on a GGUF file: passes of m rows behind 64 tokens of context, as `specgen bench --kernels` does.

usage: peer_llama_cpp.py MODEL.gguf [--threads 2] [--rows 1,4,8,16,512] [--reps 9]

Prints one JSON object. Needs llama-cpp-python 0.3.36 built from source; with AVX-512 VNNI:
  CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX512=ON
              -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON" pip install llama-cpp-python==0.3.36
Up to 32 rows all have logits; above, the last only.
"""
import argparse
import json
import statistics
import time

import llama_cpp as llama

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--rows", default="1,4,8,16,512")
parser.add_argument("--reps", type=int, default=9)
args = parser.parse_args()

CONTEXT = 64
llama.llama_backend_init()
silence = llama.llama_log_callback(lambda *_: None)  # kept alive: the library holds the pointer only
llama.llama_log_set(silence, None)
model = llama.llama_model_load_from_file(args.model.encode(), llama.llama_model_default_params())
params = llama.llama_context_default_params()
params.n_ctx, params.n_batch, params.n_ubatch = 4096, 512, 512
params.n_threads = params.n_threads_batch = args.threads
context = llama.llama_init_from_model(model, params)
vocab_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
memory = llama.llama_get_memory(context)


def run(first, count, position):
    """Seconds a pass of `count` tokens takes."""
    batch = llama.llama_batch_init(count, 0, 1)
    batch.n_tokens = count
    for i in range(count):
        batch.token[i], batch.pos[i] = (first + i) % vocab_size, position + i
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        batch.logits[i] = count <= 32 or i == count - 1
    start = time.perf_counter()
    result = llama.llama_decode(context, batch)
    llama.llama_synchronize(context)
    seconds = time.perf_counter() - start
    assert result == 0, f"llama_decode returned {result}"
    llama.llama_batch_free(batch)
    return seconds


run(100, CONTEXT, 0)
times = {}
for rows in map(int, args.rows.split(",")):
    seconds = []
    for rep in range(args.reps + 1):
        llama.llama_memory_seq_rm(memory, 0, CONTEXT, -1)
        seconds.append(run(100 + 7 * rep, rows, CONTEXT))
    times[rows] = round(statistics.median(seconds[1:]) * 1e3, 3)
print(json.dumps({"engine": "llama.cpp", "threads": args.threads, "rows": times}))
