# SPDX-License-Identifier: Apache-2.0
"""Run by test_cuda_build.py with the library on the emulated device: bytes a token and head that a call of `vc8` on
a device asks for, at the main shape. Prints workspace in token order, with the default grouping, with an LSE in token
order, and the group state. Addresses are not followed."""

from vcattn import _capi as capi

HEADS, TOKENS, D = 40, 75600, 128


def described(grouping: int, lse: bool = False) -> capi.AttnDesc:
    desc = capi.AttnDesc(device=0, recipe=capi.Recipe.VC8, grouping=grouping)
    for i, name in enumerate("qkvo"):
        strides = (HEADS * TOKENS * D, TOKENS * D, D, 1)
        setattr(desc, name, capi.tensor((i + 1) << 40, capi.Dtype.BF16, (1, HEADS, TOKENS, D), strides))
    if lse:
        desc.lse = 1 << 44
    return desc


plain, grouped = described(capi.Grouping.IDENTITY), described(capi.Grouping.DEFAULT)
sizes = [capi.workspace(plain), capi.workspace(grouped), capi.workspace(described(capi.Grouping.IDENTITY, True)),
         capi.group_state_bytes(grouped)]  # fmt: skip
print(*(size / (HEADS * TOKENS) for size in sizes))
