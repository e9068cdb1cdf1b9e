#!/usr/bin/env bash
# Run both benchmarks on the GPU where there is one, else on the CPU, in one call.
# Results go to ${OUT:-benchmarks/results}. MODELS, BACKENDS, PROCESSES, ROUNDS and PYTHON can be set as well.
# dovetail need not be installed: the checkout is enough, with torch, typer, rich and matplotlib.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON="${PYTHON:-python3}"
OUT="${OUT:-benchmarks/results}"
BACKENDS="${BACKENDS:-eager,dynamo,aot_eager,dovetail,inductor}"
export PYTHONPATH="src${PYTHONPATH:+:$PYTHONPATH}"

DEVICE="$("$PYTHON" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')"
if "$PYTHON" -c 'import transformers' 2>/dev/null; then
    MODELS="${MODELS:-gpt2-4,gpt2-12,resnet18,bert}"
else
    MODELS="${MODELS:-small-gpt,resnet18}"
fi
echo "device $DEVICE, models $MODELS, results in $OUT"

failed=0
"$PYTHON" -m benchmarks first-step --device "$DEVICE" --models "$MODELS" --backends "$BACKENDS" \
    --processes "${PROCESSES:-2}" --out "$OUT" || failed=1
"$PYTHON" -m benchmarks step --device "$DEVICE" --models "$MODELS" --backends "$BACKENDS" \
    --rounds "${ROUNDS:-20}" --out "$OUT" || failed=1
exit "$failed"
