#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the device tests on a machine with a GPU of compute capability 9.0 and writes one result file.
#
#   tests/device/run.sh [--programs DIR] [--out DIR] [--commit ID] [--parallel] [tests|sanitizers|all]
#
# --programs  where the programs are (default build-cuda/device)
# --out       where h200-YYYYMMDD-N.json (the next free N) and the logs go (default: here,
#             tests/device/results; logs in DIR/logs)
# --commit    the sources' commit (default: git's, where this is a checkout)
#
# --parallel  all test programs at once, the two long ones in parts, and then all sanitizers: where
#             device time is scarce
#
# Nothing runs longer than its limit: `tests` ends within 400 s and takes about 150; one tool of
# `sanitizers` ends within 150 s a program. What a sanitizer has no time for is counted as skipped.
#
# Exit code 0: everything passed; 1: something did not; 2: it could not run. The format of the file:
# tests/device/README.md.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)

programs=$here/../../build-cuda/device
out=$here/results
commit=""
parallel=""
what=all
while (($# > 0)); do
  case $1 in
    --programs) programs=$2 && shift ;;
    --out) out=$2 && shift ;;
    --commit) commit=$2 && shift ;;
    --parallel) parallel=yes ;;
    tests | sanitizers | all) what=$1 ;;
    *)
      echo "run.sh: unknown argument '$1'" >&2
      exit 2
      ;;
  esac
  shift
done
[[ -n $commit ]] || commit=$(git -C "$here" rev-parse --short HEAD 2>/dev/null || true)
if [[ -z $commit ]]; then
  echo "run.sh: no checkout here; give --commit" >&2
  exit 2
fi
if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "run.sh: no GPU (nvidia-smi finds none)" >&2
  exit 2
fi
logs=$out/logs
mkdir -p "$logs"
rm -f "$logs"/*

# Clock and power while everything runs, every half second.
nvidia-smi --query-gpu=clocks.sm,power.draw --format=csv,noheader,nounits -lms 500 -i 0 \
  >"$logs/clock_power.csv" 2>/dev/null &
sampler=$!
trap 'kill $sampler 2>/dev/null' EXIT

# run NAME LIMIT_S COMMAND...: the log, then "exit code, seconds" for the result file. NAME.PART: a part
# of a program; the result file has the sum.
run() {
  local name=$1 limit=$2 begin rc
  shift 2
  begin=$(date +%s.%N)
  timeout --signal=INT --kill-after=5 "$limit" "$@" >"$logs/$name.log" 2>&1
  rc=$?
  echo "$rc $(echo "$(date +%s.%N) $begin" | awk '{printf "%.1f", $1 - $2}')" >"$logs/$name.rc"
  echo "$name: exit $rc, $(cut -d' ' -f2 "$logs/$name.rc") s," \
    "$(grep -E 'PASSED|FAILED  \]|SUMMARY|^all equal|^differences|_test: ' "$logs/$name.log" | tail -1)"
  if ((rc != 0)); then
    grep -E 'FAILED|Failure|DIFFER|[1-9] differ|CUDA|Invalid|Uninit|[Hh]azard|Barrier|wrote|WRONG' \
      "$logs/$name.log" | head -20 | cut -c1-200
    tail -3 "$logs/$name.log" | cut -c1-200
  fi
}

capi() {
  run "$1" 110 "$programs/device_capi_test" --gtest_brief=0 "--gtest_output=json:$logs/$1.json"
}

if [[ $what != sanitizers && -z $parallel ]]; then
  run device_conformance 20 "$programs/device_conformance"
  run device_prep_test 40 "$programs/device_prep_test"
  run device_sm90_attention_test 100 "$programs/device_sm90_attention_test"
  capi device_capi_test
  run device_group_test 60 "$programs/device_group_test"
elif [[ $what != sanitizers ]]; then
  jobs=()
  for part in 0 1 2; do
    GTEST_TOTAL_SHARDS=3 GTEST_SHARD_INDEX=$part capi device_capi_test.$part &
    jobs+=($!)
  done
  for part in conversions vc8 vc8-turbo vc8-paper vc8-exp sage2 fp8; do
    OMP_NUM_THREADS=4 run "device_sm90_attention_test.$part" 100 \
      "$programs/device_sm90_attention_test" "$part" &
    jobs+=($!)
  done
  for program in conformance prep_test group_test; do
    run device_$program 60 "$programs/device_$program" &
    jobs+=($!)
  done
  wait "${jobs[@]}"
fi

# Every kernel and every pass under each tool, on small problems: through the C ABI, and preprocessing
# and grouping by their own cases. The tests that are left out are about scheduling (repeats, streams)
# and add no access that the others do not make.
if [[ $what != tests ]]; then
  filter='CApiFirst.*:CApi/*:DeviceBugs.B09*:DeviceBugs.B16*:DeviceBugs.B29*:DeviceBugs.B33*:DeviceBugs.B38*'
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  export VCA_TEST_SMALL=1 VCA_TEST_SECONDS=60
  jobs=()
  for tool in memcheck initcheck synccheck racecheck; do
    unset VCA_TEST_UNINITIALISED
    [[ $tool != initcheck ]] || export VCA_TEST_UNINITIALISED=1
    for part in capi prep group; do
      options=(--tool "$tool" --error-exitcode 86 --print-limit 20)
      case $part in
        capi) tested=("$programs/device_capi_test" "--gtest_filter=$filter"
          "--gtest_output=json:$logs/sanitizer_$tool.capi.json") ;;
        prep) # which copies the whole workspace back, gaps included
          tested=("$programs/device_prep_test" --small)
          [[ $tool != initcheck ]] || options+=(--check-api-memory-access no) ;;
        group) tested=("$programs/device_group_test" --small) ;;
      esac
      run "sanitizer_$tool.$part" 150 "$sanitizer" "${options[@]}" "${tested[@]}" &
      if [[ -n $parallel ]]; then jobs+=($!); else wait $!; fi
    done
  done
  [[ -z $parallel ]] || wait "${jobs[@]}"
fi

kill $sampler 2>/dev/null
python3 "$here/collect.py" --logs "$logs" --out "$out" --commit "$commit"
