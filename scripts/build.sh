#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures a preset when it has to, then builds it.
#
#   scripts/build.sh PRESET [JOBS]
set -euo pipefail
cd "$(dirname "$0")/.."

preset=$1
jobs=${2:-$(nproc)}
case $preset in
  host) dir=build ;;
  host-*) dir=build-${preset#host-} ;;
  cuda-sm90) dir=build-cuda ;;
  *)
    echo "build: unknown preset '$preset' (cmake --list-presets)" >&2
    exit 2
    ;;
esac
if ! command -v cmake >/dev/null; then
  echo "build: cmake not found. Run: make setup" >&2
  exit 1
fi

# A tree that is configured and newer than the presets is left to the build tool, which reconfigures
# when a CMake file or the set of sources changed.
configured=""
for rules in "$dir/build.ninja" "$dir/Makefile"; do
  if [[ -f $rules && $rules -nt CMakePresets.json ]]; then
    configured=yes
  fi
done
if [[ -z $configured ]]; then
  generator=()
  if command -v ninja >/dev/null; then
    generator=(-G Ninja)
  fi
  # --fresh: a cache left by a failed configuration may name another generator or stale packages.
  cmake --fresh --preset "$preset" "${generator[@]}"
fi
cmake --build --preset "$preset" -j "$jobs"
