#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Coverage-guided fuzzing with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer (clang).
#
#   scripts/fuzz.sh [TARGET [INPUTS]]
#
# TARGET: safetensors, descriptor, group_state or all (default); INPUTS: how many each (default one
# million). The corpus grows in out/fuzz/TARGET and serves the next run. A finding is written to
# out/fuzz/TARGET-crash-* and fails the script. The tests run the same targets for a fixed number of
# mutations of their seeds, with any compiler.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=${1:-all}
inputs=${2:-1000000}
targets=(safetensors descriptor group_state)
if [[ $wanted != all ]]; then
  targets=("$wanted")
fi
if [[ ! -f build-fuzz/build.ninja ]]; then
  cmake --preset host-fuzz -G Ninja
fi
programs=()
for target in "${targets[@]}"; do
  programs+=("${target}_fuzz" "${target}_fuzz_guided")
done
cmake --build build-fuzz -j "${JOBS:-$(nproc)}" --target "${programs[@]}"
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
# What OpenMP's runtime keeps for its threads at the end is not the library's; short stacks of
# allocations make an input a third faster.
suppressions=build-fuzz/lsan.txt
echo 'leak:libomp' >"$suppressions"
export LSAN_OPTIONS=suppressions=$suppressions:print_suppressions=0
export ASAN_OPTIONS=malloc_context_size=2:quarantine_size_mb=32
for target in "${targets[@]}"; do
  corpus=out/fuzz/$target
  mkdir -p "$corpus"
  "build-fuzz/tests/${target}_fuzz" --write-seeds "$corpus"
  "build-fuzz/tests/${target}_fuzz_guided" "$corpus" -runs="$inputs" -max_len=4096 -timeout=60 \
    -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix="$corpus-" 2>&1 |
    tee "$corpus.log" | grep -E '^(#[0-9]+\s+(DONE|INITED)|stat::|==|SUMMARY)' || true
  grep -q '^Done ' "$corpus.log" || {
    echo "fuzz: $target did not end well; see $corpus.log" >&2
    exit 1
  }
done
