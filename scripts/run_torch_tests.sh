#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests that need torch and adds their count to what `make test` counted.
set -uo pipefail
cd "$(dirname "$0")/.."

results=build/test-results
mkdir -p "$results"
rm -f "$results/pytest-torch.xml"
export OMP_NUM_THREADS=2

.venv-torch/bin/python -m pytest tests/torch --junitxml="$results/pytest-torch.xml"
pytest_rc=$?

files=()
for name in ctest pytest pytest-torch; do
  if [[ -f $results/$name.xml || $name == pytest-torch ]]; then
    files+=("$results/$name.xml")
  fi
done
.venv/bin/python scripts/count_tests.py "${files[@]}" >"$results/counts.txt"
count_rc=$?
cat "$results/counts.txt"
if ((pytest_rc != 0 || count_rc != 0)); then
  echo "tests: FAILED (pytest exit $pytest_rc)" >&2
  exit 1
fi
