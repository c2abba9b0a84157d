#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes dist/vcattn-VERSION-py3-none-manylinux_*.whl around a built library: hatchling packs it,
# auditwheel checks what it links, puts the OpenMP runtime inside and names the oldest glibc.
#
#   scripts/make_wheel.sh LIBRARY [OUTDIR]
set -euo pipefail
library=$(realpath "$1")
cd "$(dirname "$0")/.."
out=$(realpath -m "${2:-dist}")

tools=.venv/wheel-tools
stamp=$tools/.installed-$(sha256sum python/requirements-wheel.txt | cut -c1-16)
if [[ ! -f $stamp ]]; then
  rm -rf "$tools"
  .venv/bin/python -m venv "$tools"
  "$tools"/bin/python -m pip install --quiet --disable-pip-version-check \
    -r python/requirements-wheel.txt
  touch "$stamp"
fi

plain=$(mktemp -d)
trap 'rm -rf "$plain"' EXIT
VCATTN_LIBRARY=$library "$tools"/bin/python -m pip wheel --quiet --disable-pip-version-check \
  --no-deps --no-build-isolation --wheel-dir "$plain" ./python
mkdir -p "$out"
rm -f "$out"/vcattn-*.whl
PATH="$PWD/$tools/bin:$PATH" "$tools"/bin/auditwheel repair --wheel-dir "$out" "$plain"/vcattn-*.whl
ls -l "$out"/vcattn-*.whl
