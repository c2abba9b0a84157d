#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ThreadSanitizer on the CPU backend's threads, and valgrind on the C example of the README
# with every recipe. Fails at a report, a wrong result or a block that is definitely lost.
#
#   scripts/races_and_leaks.sh [thread|valgrind|all]
#
# thread needs clang with libomp (make setup-dev); valgrind needs valgrind and `make build`.
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:-all}
jobs=${JOBS:-$(nproc)}

if [[ $what == thread || $what == all ]]; then
  if [[ ! -f build-tsan/build.ninja ]]; then
    cmake --preset host-tsan -G Ninja
  fi
  cmake --build build-tsan -j "$jobs" --target core_threads_test
  # Archer tells ThreadSanitizer what OpenMP's own synchronisation orders; without it every barrier
  # of the uninstrumented runtime looks like a race.
  archer=$(find /usr/lib /usr/local/lib -name libarcher.so -print -quit 2>/dev/null)
  if [[ -z $archer ]]; then
    echo "races_and_leaks: libarcher.so not found: install libomp's tools (Debian: libomp-dev)" >&2
    exit 1
  fi
  for unit in portable avx2 avx512; do
    # A unit that this machine lacks is refused, and that is no finding.
    if ! VCATTN_CPU_ISA=$unit build-tsan/tests/core_threads_test --gtest_list_tests >/dev/null ||
      { [[ $unit != portable ]] && ! grep -qw "${unit/avx512/avx512f}" /proc/cpuinfo; }; then
      continue
    fi
    echo "== ThreadSanitizer, $unit"
    VCATTN_CPU_ISA=$unit OMP_TOOL_LIBRARIES=$archer \
      TSAN_OPTIONS="ignore_noninstrumented_modules=1 halt_on_error=1 exitcode=66" \
      build-tsan/tests/core_threads_test --gtest_brief=1
  done
fi

if [[ $what == valgrind || $what == all ]]; then
  dir=$(mktemp -d)
  trap 'rm -rf "$dir"' EXIT
  # The README's example with each recipe by number: 0 is the default, 1 .. 16 the named ones.
  sed -n '/^```c$/,/^```$/p' README.md | sed '1d;$d' |
    sed 's/= vca_attn_desc_init();/= vca_attn_desc_init(); d.recipe = RECIPE;/' >"$dir/example.c"
  for recipe in $(seq 0 16); do
    cc -std=c99 -g -DRECIPE="$recipe" -Iinclude "$dir/example.c" -Lbuild/lib -lvcattn \
      -Wl,-rpath,"$PWD/build/lib" -o "$dir/example"
    echo "== valgrind, recipe $recipe"
    # valgrind does not know AVX-512. OpenMP's thread pool stays "possibly lost".
    VCATTN_CPU_ISA=avx2 OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive \
      valgrind -q --leak-check=full --errors-for-leak-kinds=definite \
      --show-leak-kinds=definite --error-exitcode=9 "$dir/example" >"$dir/log"
  done
fi
