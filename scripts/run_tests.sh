#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs ctest, then pytest, each to its end whatever the other says; prints how many tests each ran
# and fails when a test failed or when either ran none.
set -uo pipefail
cd "$(dirname "$0")/.."

preset=${PRESET:-host}
results=build/test-results
rm -rf "$results"
mkdir -p "$results"
export OMP_NUM_THREADS=2

ctest --preset "$preset" --output-junit "$PWD/$results/ctest.xml"
ctest_rc=$?
.venv/bin/python -m pytest --junitxml="$results/pytest.xml"
pytest_rc=$?

.venv/bin/python scripts/count_tests.py "$results/ctest.xml" "$results/pytest.xml" \
  >"$results/counts.txt"
count_rc=$?
cat "$results/counts.txt"
if ((ctest_rc != 0 || pytest_rc != 0 || count_rc != 0)); then
  echo "tests: FAILED (ctest exit $ctest_rc, pytest exit $pytest_rc)" >&2
  exit 1
fi
