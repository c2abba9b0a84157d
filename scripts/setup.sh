#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the build, the demo and the tests need: Debian packages, and Python packages in
# .venv. Running it again installs nothing twice and asks no network when nothing is missing.
#
#   scripts/setup.sh [--dev] [--cuda] [--torch]
#
# --dev            clang and clang-format, too
# --cuda           a CUDA compiler, too, where the machine has none: python/requirements-cuda.txt into
#                  .venv/cuda-toolkit (no GPU and no driver are needed to compile); a disassembler:
#                  python/requirements-sass.txt into .venv/cuda-sass
# --torch          nothing but .venv-torch: torch and diffusers, for the tests of the integrations
# VCA_SKIP_APT=1   leave the system's packages alone (the build then says what it misses)
# PYTHON=...       interpreter for the virtual environment (default /usr/bin/python3)
set -euo pipefail
cd "$(dirname "$0")/.."

package_lists=(scripts/packages-debian.txt)
requirements=python/requirements.txt
venv=.venv
cuda=""

fail() {
  printf 'setup: %s\n' "$@" >&2
  exit 1
}

for option in "$@"; do
  case $option in
    --dev)
      package_lists+=(scripts/packages-debian-dev.txt)
      requirements=python/requirements-dev.txt
      ;;
    --cuda) cuda=yes ;;
    --torch)
      VCA_SKIP_APT=1
      requirements=python/requirements-torch.txt
      venv=.venv-torch
      ;;
    *) fail "unknown option '$option' (--dev, --cuda, --torch)" ;;
  esac
done

missing_packages() {
  local wanted installed
  wanted=$(grep -hvE '^\s*(#|$)' "${package_lists[@]}" | sort -u)
  # dpkg-query exits non-zero when a name is unknown to it, which is just what we ask about.
  installed=$(xargs dpkg-query -W -f '${db:Status-Status} ${Package}\n' <<<"$wanted" 2>/dev/null |
    sed -n 's/^installed //p' | sort -u || true)
  comm -23 <(printf '%s\n' "$wanted") <(printf '%s\n' "$installed")
}

install_debian_packages() {
  if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    fail "this is not a Debian system (no apt-get)." \
      "Install what corresponds to $(printf '%s ' "${package_lists[@]}")and run again with VCA_SKIP_APT=1."
  fi
  local missing
  mapfile -t missing < <(missing_packages)
  if [[ ${#missing[@]} -eq 0 ]]; then
    return
  fi
  echo "setup: Debian packages to install: ${missing[*]}"
  if [[ $(id -u) -ne 0 ]]; then
    fail "installing them needs root. As root, run:" "  apt-get install ${missing[*]}" \
      "then this command again."
  fi
  export DEBIAN_FRONTEND=noninteractive
  local apt=(apt-get -q -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3)
  # One unreachable source of several must not stop us: the install below says what it cannot find.
  "${apt[@]}" update || echo "setup: apt-get update reported an error; going on" >&2
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}"
  mapfile -t missing < <(missing_packages)
  if [[ ${#missing[@]} -ne 0 ]]; then
    fail "still not installed: ${missing[*]} (Debian 12 and 13 have them in main)."
  fi
}

# The key names the requirements and the interpreter, so a change of either makes a new set-up.
requirements_key() {
  { cat python/requirements.txt "$1" && "$2" -V; } | sha256sum | cut -c1-16
}

install_python_packages() {
  local python=${PYTHON:-/usr/bin/python3}
  if [[ ! -x "$(command -v "$python" || true)" ]]; then
    fail "no Python interpreter at '$python'; set PYTHON=/path/to/python3 (3.11 or newer)."
  fi
  local stamp dev_stamp
  stamp=$venv/.installed-$(requirements_key "$requirements" "$python")
  # A plain set-up is content with the larger one that --dev made.
  dev_stamp=$venv/.installed-$(requirements_key python/requirements-dev.txt "$python")
  if "$venv"/bin/python -c '' 2>/dev/null && [[ -f $stamp || -f $dev_stamp ]]; then
    return
  fi
  echo "setup: Python packages into $venv"
  if ! "$venv"/bin/python -m pip --version >/dev/null 2>&1; then
    "$python" -m venv --clear "$venv" ||
      fail "'$python -m venv' failed; on Debian: apt-get install python3-venv"
  fi
  "$venv"/bin/python -m pip install --quiet --disable-pip-version-check -r "$requirements"
  rm -f "$venv"/.installed-*
  touch "$stamp"
}

# The same places as cmake/VcaCuda.cmake.
has_nvcc() {
  local home
  for home in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda; do
    if [[ -n $home && -x $home/bin/nvcc ]]; then
      return 0
    fi
  done
  [[ -n "${CUDACXX:-}" && -x "${CUDACXX:-}" ]] || command -v nvcc >/dev/null
}

# install_tool REQUIREMENTS TARGET PROGRAM HINT [NOTE]: what REQUIREMENTS pins into the folder TARGET,
# once for each version of that file. Says NOTE before, fails with HINT where PROGRAM does not run.
install_tool() {
  local requirements=$1 target=$2 program=$3 hint=$4 note=${5:-} stamp
  stamp=$target/.installed-$(sha256sum "$requirements" | cut -c1-16)
  if [[ -f $stamp ]]; then
    return
  fi
  [[ -z $note ]] || echo "setup: $note"
  rm -rf "$target"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
    --target "$target" -r "$requirements"
  "$target/nvidia/cu13/bin/$program" --version >/dev/null ||
    fail "the $program in $target does not run$hint."
  touch "$stamp"
}

install_cuda_compiler() {
  local toolkit=.venv/cuda-toolkit
  if has_nvcc; then
    return
  fi
  install_tool python/requirements-cuda.txt "$toolkit" nvcc \
    "; with a CUDA toolkit 13.0 of your own set CUDA_HOME" \
    "no nvcc here; the CUDA compiler of PyPI into $toolkit"
}

install_disassembler() {
  install_tool python/requirements-sass.txt .venv/cuda-sass cuobjdump ""
}

if [[ -z "${VCA_SKIP_APT:-}" ]]; then
  install_debian_packages
fi
install_python_packages
if [[ -n $cuda ]]; then
  install_cuda_compiler
  install_disassembler
fi
