# SPDX-License-Identifier: Apache-2.0
"""Parts of a document that a program makes: what stands between two comments is written anew.

    <!-- bench/tables.py main -->
    ...
    <!-- end of table -->
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection


def rewritten(
    text: str, program: str, what: str, known: Collection[str], make: Callable[[str], str]
) -> tuple[str, int]:
    """`text` with its marked parts made anew by make(name), and how many there were. `program`: path in
    the first comment; `what`: "table" or "part", in the last. ValueError for a name not in `known`."""
    marks = re.compile(rf"(<!-- {re.escape(program)} (\w+) -->\n).*?(<!-- end of {what} -->)", re.S)

    def fill(match: re.Match) -> str:
        if match[2] not in known:
            raise ValueError(f"there is no {what} {match[2]!r}; allowed: {', '.join(known)}")
        return f"{match[1]}{make(match[2])}\n{match[3]}"

    return marks.subn(fill, text)
