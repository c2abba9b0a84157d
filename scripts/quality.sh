#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make quality`: repeats the demonstration on many seeds (about ten minutes on two free cores).
#
#   scripts/quality.sh [options of scripts/quality.py]
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python scripts/quality.py "$@"
