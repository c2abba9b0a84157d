#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make quality`: repeats the demonstration on 20 seeds (about half an hour on two free cores).
#
#   scripts/quality.sh [options of scripts/quality.py]
set -euo pipefail
cd "$(dirname "$0")/.."
exec .venv/bin/python scripts/quality.py "$@"
