# SPDX-License-Identifier: Apache-2.0
"""The package of this checkout is importable in every test, installed nowhere."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
