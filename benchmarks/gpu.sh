#!/usr/bin/env bash
# Run the tests for GPUs and the benchmarks in one call: on the GPU where there is one, else on the CPU.
# Results go to ${OUT:-benchmarks/results}: logs, the JSON of each benchmark, and all tables in tables.md, 7 files at most.
# On a GPU no part takes longer than its limit, 490 s all together; LIMITS=0 lifts the limits. A part that fails or runs
# out of time does not stop the others; the exit status says whether one did.
# MODELS, MEMORY_MODELS, BACKENDS, PROCESSES, ROUNDS and PYTHON can be set as well.
# dovetail need not be installed: the checkout is enough, with torch, numpy, typer, rich, safetensors and matplotlib, and,
# for the tests, pytest, pytest-timeout, pytest-xdist and hypothesis.
set -uo pipefail
cd "$(dirname "$0")/.."

PYTHON="${PYTHON:-python3}"
OUT="${OUT:-benchmarks/results}"
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}"

DEVICE="$("$PYTHON" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')" || exit 1
[ "$DEVICE" = cuda ] && LIMITS="${LIMITS:-1}" || LIMITS="${LIMITS:-0}"
# Others take minutes to a first step there.
[ "$DEVICE" = cuda ] && BACKENDS="${BACKENDS:-eager,dovetail}" || BACKENDS="${BACKENDS:-eager,aot_eager,dovetail,inductor}"
if "$PYTHON" -c 'import transformers' 2>/dev/null; then
    MODELS="${MODELS:-gpt2-4}"
    MEMORY_MODELS="${MEMORY_MODELS:-gpt2-4}"
else
    MODELS="${MODELS:-small-gpt}"
    MEMORY_MODELS="${MEMORY_MODELS:-small-gpt}"
fi
mkdir -p "$OUT"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
echo "device $DEVICE, models $MODELS, memory of $MEMORY_MODELS, results in $OUT"

failed=0
# part SECONDS LOG COMMAND...: its output goes to the end of the log and to the terminal.
part() {
    local seconds=$(($1 * LIMITS)) log="$OUT/$2" status=0
    shift 2
    echo "== $* (at most ${seconds} s; 0: no limit)" | tee -a "$log"
    timeout --signal=INT --kill-after=10 "$seconds" "$@" 2>&1 | tee -a "$log" || status=$?
    echo "== exit status $status after $SECONDS s in all" | tee -a "$log"
    [ "$status" = 0 ] || failed=1
}

rm -f "$OUT/tests.log" "$OUT/benchmarks.log" "$OUT/tables.md"
if [ "$DEVICE" = cuda ] || [ -n "${DOVETAIL_TEST_DEVICE:-}" ]; then
    part 180 tests.log "$PYTHON" -m pytest tests/cuda/test_{steps,calls,programs}_there.py \
        -q -rA --tb=short -n "${WORKERS:-15}" -p no:cacheprovider -p no:benchmark --timeout 60
fi
for model in $MEMORY_MODELS; do
    part 170 benchmarks.log "$PYTHON" -m benchmarks step-memory --device "$DEVICE" --models "$model" --clipped "" \
        --ways "eager,dovetail,dovetail lowest" \
        --rounds "${ROUNDS:-5}" --logging-rounds 20 --out "$work/step-memory-$model"
done
part 60 benchmarks.log "$PYTHON" -m benchmarks step --device "$DEVICE" --models "$MODELS" --backends "$BACKENDS" \
    --rounds "${ROUNDS:-10}" --out "$work/step"
part 80 benchmarks.log "$PYTHON" -m benchmarks first-step --device "$DEVICE" --models "$MODELS" \
    --backends "$BACKENDS" --processes "${PROCESSES:-1}" --out "$work/first-step"

for folder in "$work"/*/; do
    name="$(basename "$folder")"
    cat "$folder"*.json >"$OUT/$name.json" 2>/dev/null || rm -f "$OUT/$name.json"
    cat "$folder"*.md >>"$OUT/tables.md" 2>/dev/null || true
done
exit "$failed"
