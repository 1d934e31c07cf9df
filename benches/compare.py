#!/usr/bin/env python3
"""specgen beside llama.cpp on the same files, in one run: the tables of RESULTS.md.

usage: compare.py [--specgen target/release/specgen] [--python PYTHON] [--threads 2] [--reps 9] [--model NAME …]

PYTHON has llama-cpp-python (see peer_llama_cpp.py). Models come from the folder `specgen pull` fills. For each model:
specgen's passes, llama.cpp's passes of the same rows, and last specgen's texts of the category `code_edit`, so that
all of them meet the same minutes of a machine whose memory rate moves.
"""
import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROWS = "1,4,8,16,512"
MODELS = {
    "qwen2.5-coder-1.5b-instruct": "Q4_K_M",
    "smollm2-135m-instruct": "Q4_1",
    "gemma-3-270m": "Q4_K_M",
}
CHAT = "qwen2.5-coder-1.5b-instruct"

parser = argparse.ArgumentParser()
parser.add_argument("--specgen", default=str(HERE.parent / "target/release/specgen"))
parser.add_argument("--python", default=sys.executable)
parser.add_argument("--threads", default="2")
parser.add_argument("--reps", default="9")
parser.add_argument("--model", action="append")
args = parser.parse_args()


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def cpu():
    if os.path.exists("/proc/cpuinfo"):
        for line in open("/proc/cpuinfo"):
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.processor()


commit = output("git", "-C", str(HERE), "rev-parse", "--short", "HEAD").strip()
print(f"Commit {commit}, {cpu()}, {os.cpu_count()} cores, {args.threads} threads, medians of {args.reps}\n")
print("| model | engine | T(1) ms | T(4) | T(8) | T(16) | prompt of 512 | of a plain read | memory |")
print("|---|---|---|---|---|---|---|---|---|")
one_row = {}
common = ["--threads", args.threads, "--reps", args.reps]
for name in args.model or MODELS:
    ours = json.loads(output(args.specgen, "bench", "--kernels", "-m", name, "--rows", ROWS, *common, "--json"))
    file = json.loads(output(args.specgen, "inspect", name, "--json"))["path"]
    peer = json.loads(output(args.python, str(HERE / "peer_llama_cpp.py"), file, "--rows", ROWS, *common))
    ours_ms, peer_ms = ([engine["rows"][rows] for rows in ROWS.split(",")] for engine in (ours, peer))
    one_row[name] = peer_ms[0]

    def row(model, engine, values, more=""):
        print(f"| {model} | {engine} | {' | '.join(values)} | {more} |", flush=True)

    def over_one(times):
        return [f"{t:.1f}" + (f" ({t / times[0]:.2f})" if 0 < i < 4 else "") for i, t in enumerate(times)]

    row(f"{name} {MODELS.get(name, '')}", "llama.cpp", over_one(peer_ms), "|")
    read = ours["read_ms"] / ours_ms[0]
    resident = ours["resident_bytes"]
    memory = "-" if resident is None else f"{resident / ours['file_bytes']:.2f} of the file"
    row("", f"specgen, {ours['isa']}", over_one(ours_ms), f"{read:.0%} | {memory}")
    row("", "ratio", [f"**{b / a:.1f}**" for a, b in zip(ours_ms, peer_ms)], "|")

if CHAT in one_row:
    print(f"\n`specgen bench -m {CHAT} --category code_edit --draft ngram -k 7`\n")
    texts = json.loads(
        output(args.specgen, "bench", "-m", CHAT, "--category", "code_edit", "--draft", "ngram", "-k", "7", *common, "--json")
    )
    print("| draft | tok/s | speed-up | accepted | tokens a round | llama.cpp, one row at a time | ratio |")
    print("|---|---|---|---|---|---|---|")
    peer_rate = 1e3 / one_row[CHAT]
    for row in texts["categories"]:
        rate = row["tokens_per_second"]
        print(
            f"| {row['draft']} | {rate:.1f} | {row['speed_up']:.2f} | {row['acceptance_rate']:.0%} | "
            f"{row['tokens_per_round']:.2f} | {peer_rate:.1f} tok/s | **{rate / peer_rate:.1f}** |"
        )
