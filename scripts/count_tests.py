# SPDX-License-Identifier: Apache-2.0
"""Counts the tests in JUnit files; exit 1 when a file is missing or nothing in it ran.

usage: count_tests.py ctest.xml pytest.xml
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def count(path: pathlib.Path) -> tuple[int, int, int]:
    """(passed, failed, skipped) of one file."""
    if not path.is_file():
        return 0, 0, 0
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is not None or case.get("status") in ("notrun", "disabled"):
            skipped += 1
        else:
            passed += 1
    return passed, failed, skipped


def main() -> int:
    total = [0, 0, 0]
    nothing_ran = []
    for name in sys.argv[1:]:
        path = pathlib.Path(name)
        counts = count(path)
        print("{}: {} passed, {} failed, {} skipped".format(path.stem, *counts))
        total = [a + b for a, b in zip(total, counts)]
        if counts[0] + counts[1] == 0:
            nothing_ran.append(path.stem)
    print("total: {} passed, {} failed, {} skipped".format(*total))
    for name in nothing_ran:
        print(f"{name} ran no test", file=sys.stderr)
    return 1 if nothing_ran or total[1] else 0


if __name__ == "__main__":
    sys.exit(main())
