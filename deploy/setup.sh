#!/usr/bin/env bash
# Makes .venv with the pinned set named by $1 (cpu or gpu). Run by `make setup`; safe to run again.
set -euo pipefail
set_name=${1:?usage: setup.sh cpu|gpu}
python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || python=python3
"$python" - <<'PY' || exit 1
import sys
if not (3, 11) <= sys.version_info[:2] <= (3, 13):
    sys.exit(f"HORA needs Python 3.11 to 3.13, this is {sys.version.split()[0]}: set PYTHON=/path/to/python3.11")
PY
other=$([ "$set_name" = cpu ] && echo gpu || echo cpu)
if [ -e ".venv/.ready-$other" ]; then
  echo "the $other set is installed in .venv; the two must never be mixed: starting afresh"
  rm -rf .venv
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip=(.venv/bin/python -m pip --disable-pip-version-check --quiet)
if [ "$set_name" = cpu ]; then
  # CPU builds of torch are not on PyPI. Where pip does not already know them, PyTorch's own index has them.
  torch=$(grep '^torch==' requirements/cpu.txt)
  "${pip[@]}" install --no-deps "$torch" 2>/dev/null ||
    "${pip[@]}" install --no-deps --index-url "${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}" "$torch"
fi
"${pip[@]}" install --no-deps -r "requirements/$set_name.txt" -r requirements/dev.txt
"${pip[@]}" install --no-deps --no-build-isolation -e .
# What vLLM declares and no text model loads. On a CPU: packages whose CUDA builds break CPU torch. On a GPU, 0.9 GB:
# decoders of video and sound, a loader of weights, kernels of MLA on Blackwell cards and of DeepSeek-V4, and a copy for CUDA 12.
unused='torchcodec|tilelang|z3-solver|tokenspeed-(mla|triton)|pynvvideocodec|instanttensor|nvidia-cutlass-dsl-libs-cu12'
[ "$set_name" = gpu ] || unused+='|torchaudio|torchvision'
lacking=$(.venv/bin/python -m pip --disable-pip-version-check check | grep -Eiv "^No broken| requires (${unused})," || true)
if [ -n "$lacking" ]; then
  printf '%s\n' "the $set_name set is not whole; remove .venv, then repeat. pip check says:" "$lacking" >&2
  exit 1
fi
.venv/bin/python -c 'import vllm' >/dev/null 2>&1 || { echo "vllm does not import; run .venv/bin/python -c 'import vllm' to see why"; exit 1; }
touch ".venv/.ready-$set_name"
