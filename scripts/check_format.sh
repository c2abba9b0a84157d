#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks every C and C++ file of the repository against .clang-format; --fix rewrites them.
set -euo pipefail
cd "$(dirname "$0")/.."

wanted=14
clang_format=""
for candidate in "${CLANG_FORMAT:-}" .venv/bin/clang-format clang-format-$wanted clang-format; do
  if [[ -n $candidate ]] && "$candidate" --version 2>/dev/null | grep -q "version $wanted\."; then
    clang_format=$candidate
    break
  fi
done
if [[ -z $clang_format ]]; then
  echo "check-format: needs clang-format $wanted (other versions format differently): make setup-dev" >&2
  exit 1
fi

mapfile -d '' -t files < <(git ls-files -z '*.c' '*.h' '*.cpp' '*.hpp' '*.inl' '*.cu' '*.cuh')
if [[ ${#files[@]} -eq 0 ]]; then
  echo "check-format: no files" >&2
  exit 1
fi
if [[ "${1:-}" == "--fix" ]]; then
  "$clang_format" -i "${files[@]}"
else
  "$clang_format" --dry-run -Werror "${files[@]}"
  echo "check-format: ${#files[@]} files clean"
fi
