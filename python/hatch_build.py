# SPDX-License-Identifier: Apache-2.0
"""Puts libvcattn.so into the wheel and names it for what it is: any Python 3, this platform only."""

import os
import pathlib
import sysconfig

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LibraryInside(BuildHookInterface):
    def initialize(self, version: str, build_data: dict) -> None:
        if version == "editable":  # the checkout's own build is found without a copy
            return
        default = pathlib.Path(self.root).parent / "build" / "lib" / "libvcattn.so"
        library = pathlib.Path(os.environ.get("VCATTN_LIBRARY", default)).resolve()
        if not library.is_file():
            raise SystemExit(
                f"vcattn: no library at '{library}'. Run 'make build' (or 'make cuda') first, or "
                "set VCATTN_LIBRARY to a libvcattn.so."
            )
        build_data["force_include"][str(library)] = "vcattn/libvcattn.so"
        build_data["force_include"][str(pathlib.Path(self.root).parent / "LICENSE")] = "vcattn/LICENSE"
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
