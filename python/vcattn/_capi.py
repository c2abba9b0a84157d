# SPDX-License-Identifier: Apache-2.0
"""The C ABI (``include/vca/vca.h``) from Python, by ctypes alone.

This is the layer for callers who hold raw pointers: host or device addresses, and stream handles as
integers (``torch.cuda.current_stream().cuda_stream``). Everyone else wants ``vcattn.attention``.

    from vcattn import _capi as capi
    desc = capi.AttnDesc(device=0, recipe=capi.Recipe.VC8)
    desc.q = capi.tensor(q.data_ptr(), capi.Dtype.BF16, q.shape, q.stride())   # [B, H, S, D]
    ...
    bytes_needed = capi.workspace(desc)
    capi.run(desc, workspace_ptr, bytes_needed, stream)

Each function raises the exception of its status (``vcattn.VcattnError`` and its subclasses) with
the library's own text. Calls release the GIL. Pointers are borrowed: keep what owns them alive,
on a device until the stream has done the work.

Where the library is looked for, first hit wins:

1. the file that the environment variable ``VCATTN_LIBRARY`` names (then nothing else is tried);
2. ``libvcattn.so`` in this package's own folder (an installed wheel);
3. ``build/lib/libvcattn.so`` of the checkout that this package lies in (after ``make build``).
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p

from ._errors import BY_STATUS, InternalError, LibraryNotFoundError
# The structs and enums are this module's names too.
from ._structs import (  # noqa: F401
    AttnDesc,
    AttnInfo,
    CHECK_FINITE,
    DEVICE_CPU,
    Dtype,
    Grouping,
    Policy,
    PolicyAfter,
    Recipe,
    RefIo,
    Rope,
    RopeConvention,
    Segment,
    SegmentKind,
    Target,
    Tensor,
)

LIBRARY_NAME = "libvcattn.so"

_DESC = POINTER(AttnDesc)
_SIZE = POINTER(c_size_t)
# Name -> (result, arguments). Every function of the header stands here.
PROTOTYPES: dict[str, tuple] = {
    "vca_version": (c_char_p, ()),
    "vca_spec_version": (c_int32, ()),
    "vca_status_str": (c_char_p, (c_int,)),
    "vca_last_error": (c_char_p, ()),
    "vca_recipe_str": (c_char_p, (c_int32,)),
    "vca_grouping_str": (c_char_p, (c_int32,)),
    "vca_target_str": (c_char_p, (c_int32,)),
    "vca_recipe_parse": (c_int, (c_char_p, POINTER(c_int32), POINTER(c_int32))),
    "vca_grouping_parse": (c_int, (c_char_p, POINTER(c_int32))),
    "vca_target_parse": (c_int, (c_char_p, POINTER(c_int32))),
    "vca_attn_query": (c_int, (_DESC, POINTER(AttnInfo))),
    "vca_attn_explain": (c_int, (_DESC, c_char_p, c_size_t, _SIZE)),
    "vca_attn_workspace": (c_int, (_DESC, _SIZE)),
    "vca_attn_prepare": (c_int, (_DESC, c_void_p, c_size_t, c_void_p)),
    "vca_attn_attend": (c_int, (_DESC, c_void_p, c_size_t, c_void_p)),
    "vca_attn_run": (c_int, (_DESC, c_void_p, c_size_t, c_void_p)),
    "vca_ref_attn": (c_int, (_DESC, c_int32, c_int64, c_int64, c_int64, c_int64, POINTER(RefIo))),
    "vca_ref_blocks": (c_int, (_DESC, c_int64, POINTER(c_int64), POINTER(c_int64))),
    "vca_group_state_bytes": (c_int, (_DESC, _SIZE)),
    "vca_group_state_init": (c_int, (_DESC, c_void_p, c_size_t, c_void_p)),
    "vca_group_state_reset": (c_int, (c_void_p, c_size_t, c_void_p)),
    "vca_group_state_save": (c_int, (c_void_p, c_size_t, c_void_p, _SIZE)),
    "vca_group_state_load": (c_int, (_DESC, c_void_p, c_size_t, c_void_p, c_size_t)),
}


# ------------------------------------------------------------------ the library
def library_path() -> pathlib.Path:
    """The file that will be (or was) loaded. Raises ``LibraryNotFoundError``."""
    named = os.environ.get("VCATTN_LIBRARY")
    if named:
        path = pathlib.Path(named)
        if not path.is_file():
            raise LibraryNotFoundError(
                f"VCATTN_LIBRARY names '{named}', which is not a file. "
                f"Set it to a {LIBRARY_NAME}, or unset it."
            )
        return path
    package = pathlib.Path(__file__).resolve().parent
    candidates = [
        package / LIBRARY_NAME,
        package.parents[1] / "build" / "lib" / LIBRARY_NAME,
    ]
    for path in candidates:
        if path.is_file():
            return path
    tried = ", ".join(str(path) for path in candidates)
    raise LibraryNotFoundError(
        f"{LIBRARY_NAME} not found. Tried: {tried}. In a checkout run 'make build'; "
        f"or set VCATTN_LIBRARY to the file."
    )


class _Forked:
    """Whether this process is a fork of one that had loaded the library. OpenMP's threads are not
    there in the child, which would wait for them for ever: calls run on one thread there."""

    def __init__(self) -> None:
        self.yes = False

    def happened(self) -> None:
        self.yes = True


_forked = _Forked()


def default_threads() -> int:
    """``num_threads`` of a call that names none: 0 is OpenMP's own choice."""
    return 1 if _forked.yes else 0


@functools.cache
def lib() -> ctypes.CDLL:
    """The loaded library with typed functions; loaded at the first call."""
    path = library_path()
    try:
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments) in PROTOTYPES.items():
            function = getattr(loaded, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise LibraryNotFoundError(
            f"'{path}' is not a library that this package can use: {error}. "
            f"Build it from the same version as the package."
        ) from error
    os.register_at_fork(after_in_child=_forked.happened)
    return loaded


def check(status: int) -> None:
    """Raises the exception of a status other than VCA_OK, with the library's text."""
    if status == 0:
        return
    text = lib().vca_last_error().decode() or lib().vca_status_str(status).decode()
    raise BY_STATUS.get(status, InternalError)(text)


# ------------------------------------------------------------------- arguments
def tensor(data: int | None, dtype: int, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    """A ``vca_tensor`` of an address, a ``Dtype``, shape [B, H, S, D] and strides in elements.

    [B, S, H, D] memory is given by permuting both: shape (B, H, S, D), stride (S*H*D, D, H*D, 1).
    """
    if len(shape) != 4 or len(stride) != 4:
        raise BY_STATUS[1](
            f"a tensor needs 4 sizes and 4 strides [B, H, S, D]; got {len(shape)} and {len(stride)}"
        )
    view = Tensor()
    view.data = data
    view.dtype = dtype
    view.shape[:] = shape
    view.stride[:] = stride
    return view


# ------------------------------------------------------------------- functions
def version() -> str:
    """Version of the library, for example "0.1.0"."""
    return lib().vca_version().decode()


def spec_version() -> int:
    """Version of the numerics specification (docs/numerics.md)."""
    return lib().vca_spec_version()


def recipe_name(recipe: int) -> str | None:
    """ "vc8"; None when the number is unknown."""
    text = lib().vca_recipe_str(recipe)
    return None if text is None else text.decode()


def grouping_name(grouping: int) -> str | None:
    """ "kdtree"; None when the number is unknown."""
    text = lib().vca_grouping_str(grouping)
    return None if text is None else text.decode()


def target_name(target: int) -> str | None:
    """ "sm90"; None when the number is unknown."""
    text = lib().vca_target_str(target)
    return None if text is None else text.decode()


def parse_recipe(name: str) -> tuple[int, int]:
    """(recipe, hadamard) of a name as the command takes it: "vc8", "vc8+had", "auto"."""
    recipe, hadamard = c_int32(), c_int32()
    check(lib().vca_recipe_parse(name.encode(), byref(recipe), byref(hadamard)))
    return recipe.value, hadamard.value


def parse_grouping(name: str) -> int:
    """The number of a grouping's name."""
    value = c_int32()
    check(lib().vca_grouping_parse(name.encode(), byref(value)))
    return value.value


def parse_target(name: str) -> int:
    """The number of a target's name."""
    value = c_int32()
    check(lib().vca_target_parse(name.encode(), byref(value)))
    return value.value


def query(desc: AttnDesc) -> AttnInfo:
    """Checks the descriptor and says what would run."""
    info = AttnInfo()
    check(lib().vca_attn_query(byref(desc), byref(info)))
    return info


def explain(desc: AttnDesc) -> str:
    """One line per candidate: chosen, or refused with the reason."""
    needed = c_size_t()
    check(lib().vca_attn_explain(byref(desc), None, 0, byref(needed)))
    text = ctypes.create_string_buffer(needed.value)
    check(lib().vca_attn_explain(byref(desc), text, needed.value, byref(needed)))
    return text.value.decode()


def workspace(desc: AttnDesc) -> int:
    """Bytes of workspace that prepare, attend and run need; no tensor data is read."""
    size = c_size_t()
    check(lib().vca_attn_workspace(byref(desc), byref(size)))
    return size.value


def prepare(
    desc: AttnDesc, workspace: int | None, workspace_bytes: int, stream: int | None = None
) -> None:
    """Quantises q, k, v into the workspace. ``stream``: a cudaStream_t as an integer (None: the
    legacy default stream); None on the CPU."""
    check(lib().vca_attn_prepare(byref(desc), workspace, workspace_bytes, stream))


def attend(
    desc: AttnDesc, workspace: int | None, workspace_bytes: int, stream: int | None = None
) -> None:
    """Attention on a prepared workspace."""
    check(lib().vca_attn_attend(byref(desc), workspace, workspace_bytes, stream))


def run(
    desc: AttnDesc,
    workspace: int | None = None,
    workspace_bytes: int = 0,
    stream: int | None = None,
) -> None:
    """prepare + attend. Without a workspace (CPU only) the library takes host memory itself."""
    check(lib().vca_attn_run(byref(desc), workspace, workspace_bytes, stream))


def ref_attn(
    desc: AttnDesc, target: int, b: int, h: int, row0: int, nrows: int, io: RefIo
) -> None:
    """The specification itself for some query rows of one head (CPU)."""
    check(lib().vca_ref_attn(byref(desc), target, b, h, row0, nrows, byref(io)))


def ref_blocks(desc: AttnDesc, b: int) -> tuple[int, int]:
    """(valid keys, blocks of 128) of batch b: the sizes of ``RefIo``'s buffers."""
    n_valid, n_blocks = c_int64(), c_int64()
    check(lib().vca_ref_blocks(byref(desc), b, byref(n_valid), byref(n_blocks)))
    return n_valid.value, n_blocks.value


def group_state_bytes(desc: AttnDesc) -> int:
    """Bytes of a group state for this problem."""
    size = c_size_t()
    check(lib().vca_group_state_bytes(byref(desc), byref(size)))
    return size.value


def group_state_init(desc: AttnDesc, state: int, size: int, stream: int | None = None) -> None:
    """Makes a buffer a group state of this problem."""
    check(lib().vca_group_state_init(byref(desc), state, size, stream))


def group_state_reset(state: int, size: int, stream: int | None = None) -> None:
    """A new generation begins: the next call groups anew."""
    check(lib().vca_group_state_reset(state, size, stream))


def group_state_save(state: int, size: int) -> bytes:
    """A portable, checksummed copy."""
    needed = c_size_t()
    check(lib().vca_group_state_save(state, size, None, byref(needed)))
    blob = ctypes.create_string_buffer(needed.value)
    check(lib().vca_group_state_save(state, size, blob, byref(needed)))
    return blob.raw[: needed.value]


def group_state_load(desc: AttnDesc, state: int, size: int, blob: bytes) -> None:
    """Restores a copy made by ``group_state_save`` into an initialised state."""
    check(lib().vca_group_state_load(byref(desc), state, size, blob, len(blob)))
