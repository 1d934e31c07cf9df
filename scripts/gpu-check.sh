#!/usr/bin/env bash
# Runs the CUDA build on a machine with an NVIDIA GPU: same text as on the CPU? how fast? One command, under
# ten minutes, network not needed. Exits nonzero when a run fails or a text differs.
#
# Usage: scripts/gpu-check.sh
#   SPECGEN_BIN     the CUDA binary; default: the one under target/cuda (made by
#                   `scripts/cuda-check.sh --profile release` on any x86-64 Linux machine), else it is built here
#   SPECGEN_MODELS  GGUF files to run; default: those of specgen's model folder. Random models
#                   (random-gguf.py, needs numpy) are always tried, so that none have to be carried
#   BUDGET_S        no new run starts after this many seconds (480)
#   OUT             folder for gpu-check.log (everything) and gpu-check.json (one line a run)
set -uo pipefail # no -e: a failed run is a result, the others still count
cd "$(dirname "$0")/.."
out=${OUT:-target/gpu-check}
mkdir -p "$out"
: > "$out/gpu-check.json"
exec > >(tee "$out/gpu-check.log") 2>&1
work=$(mktemp -d)
trap 'rm -rf "$work"; sleep 0.2' EXIT
fail() { echo "gpu-check: $*"; exit 1; }

echo "== machine"
uname -srm; nproc
export PATH=$PATH:/usr/local/cuda/bin:/usr/local/nvidia/bin
nvidia-smi --query-gpu=name,driver_version,memory.total,memory.free,clocks.sm,clocks.max.sm --format=csv ||
    fail "nvidia-smi does not answer: no GPU or no driver here"
nvcc --version 2> /dev/null | tail -2 || true
# The CUDA libraries of PyTorch's wheels will do where no toolkit is installed.
wheels=$(python3 -c 'import glob, sys; print(":".join(d for p in sys.path for d in glob.glob(p + "/nvidia/*/lib")))' 2> /dev/null)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64:/usr/local/nvidia/lib64${wheels:+:$wheels}
echo "libraries: $LD_LIBRARY_PATH"

echo "== binary"
binary=${SPECGEN_BIN:-$(ls -U target/cuda/release/specgen target/cuda/release/specgen.stripped{,.xz} target/cuda/*/specgen 2> /dev/null | head -1)}
if [ -z "$binary" ]; then
    command -v cargo > /dev/null || fail "no binary under target/cuda and no cargo to build one: run scripts/cuda-check.sh --profile release elsewhere and carry target/cuda/release/specgen.stripped.xz"
    scripts/cuda-check.sh --profile release || fail "the CUDA build failed"
    binary=target/cuda/release/specgen
fi
if [ "${binary%.xz}" != "$binary" ]; then
    python3 -c 'import lzma, shutil, sys; shutil.copyfileobj(lzma.open(sys.argv[1]), open(sys.argv[2], "wb"))' "$binary" "$work/specgen" ||
        fail "$binary cannot be unpacked"
    binary=$work/specgen
fi
chmod +x "$binary" 2> /dev/null
echo "$binary: $("$binary" --version)" || fail "$binary does not start"

echo "== models"
models=()
add() { [ -s "$1" ] && models+=("$1:$2:$3"); } # file, tokens compared with the CPU, tokens timed on the GPU
if python3 -c 'import numpy' 2> /dev/null; then
    for kind in f16 q8_0 q4_k; do
        python3 scripts/random-gguf.py "$work/tiny-$kind.gguf" --size tiny --type $kind && add "$work/tiny-$kind.gguf" 48 48
    done
    python3 scripts/random-gguf.py "$work/1b-q4_k.gguf" --size 1b --type q4_k && add "$work/1b-q4_k.gguf" 16 128
    python3 scripts/random-gguf.py "$work/8b-q4_k.gguf" --size 8b --type q4_k && add "$work/8b-q4_k.gguf" 8 128
else
    echo "no numpy: no random models"
fi
if [ -n "${SPECGEN_MODELS:-}" ]; then
    for file in $SPECGEN_MODELS; do add "$file" 64 128; done
else
    for file in "${SPECGEN_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/specgen}"/models/*.gguf; do add "$file" 64 128; done
fi
[ ${#models[@]} -gt 0 ] || fail "no models: install numpy, or name GGUF files in SPECGEN_MODELS"

# run NAME MODEL TOKENS ARGUMENTS...: one greedy generation; its JSON goes to $work/NAME.json.
run() {
    local name=$1 model=$2 tokens=$3 start=$SECONDS
    shift 3
    [ "$SECONDS" -lt "${BUDGET_S:-480}" ] || { echo "$name: not run, ${BUDGET_S:-480} s are over"; return 2; }
    timeout 120 "$binary" generate "Once upon a time, in a village by the sea," --raw --greedy --json \
        --target "$model" --max-tokens "$tokens" "$@" > "$work/$name.json" 2> "$work/$name.err" && return
    echo "$name: status $? after $((SECONDS - start)) s: $(tail -3 "$work/$name.err")"
    rm -f "$work/$name.json"
    return 1
}

echo "== runs"
failed=0
for entry in "${models[@]}"; do
    IFS=: read -r model compared timed <<< "$entry"
    run cpu "$model" "$compared" --device cpu --draft none
    run cuda "$model" "$timed" --device cuda --draft none
    run cuda-ngram "$model" "$timed" --device cuda --draft ngram -k 4
    run cuda-self "$model" "$compared" --device cuda --draft "$model" -k 4
    python3 - "$work" "$(basename "$model")" "$compared" >> "$out/gpu-check.json" << 'PY' || failed=1
import json, pathlib, sys

# Greedy ids of each run against the plain CUDA run. Rounding may part them at a near-tie, so a late difference
# is reported and only an early one fails: a wrong kernel goes wrong at once.
work, model, compared = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
EARLY = min(8, compared)
results = {p.stem: json.loads(p.read_text()) for p in sorted(work.glob("*.json"))}
plain = results.get("cuda", {}).get("token_ids")
ok = plain is not None and len(results) == 4
for name, result in results.items():
    ids, stats = result["token_ids"], result.get("stats", {})
    line = {"model": model, "run": name, "tokens": len(ids), "stats": stats}
    verdict = ""
    if plain is not None and name != "cuda":
        common = min(len(ids), len(plain))
        same = next((i for i in range(common) if ids[i] != plain[i]), common)
        line["same_as_cuda"] = [same, common]
        verdict = "same text as cuda" if same == common else f"differs from cuda at token {same} of {common}"
        if same < min(EARLY, common) or common == 0:
            ok, verdict = False, verdict + ": WRONG"
    speed = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in stats.items() if isinstance(v, (int, float)))
    print(json.dumps(line))
    print(f"{model:32} {name:11} {len(ids):4} tokens  {verdict}  [{speed}]", file=sys.stderr)
sys.exit(0 if ok else f"{model}: FAILED")
PY
    rm -f "$work"/*.json "$work"/*.err
done
nvidia-smi --query-gpu=clocks.sm,temperature.gpu,memory.used --format=csv,noheader
[ $failed -eq 0 ] || fail "failed after $SECONDS s, see above"
echo "gpu-check: passed in $SECONDS s"
