# SPDX-License-Identifier: Apache-2.0
"""Options of the wrong kind, for numpy arrays: one exception for all of them, nothing cut off or dropped."""

import numpy as np
import pytest
import vcattn
from bad_options import BAD_OPTIONS
from oracle import random_qkv

SHAPE = (1, 2, 200, 64)


@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_options_of_the_wrong_kind_are_refused(name):
    options, word = BAD_OPTIONS[name]
    q, k, v = random_qkv(SHAPE)
    with pytest.raises(vcattn.InvalidArgumentError, match=f"(?s){word}") as caught:
        vcattn.attention(q, k, v, **options())
    assert "got" in str(caught.value) and "allowed" in str(caught.value)


@pytest.mark.parametrize("shape", [(100, 16), (200, 8), (1, 200, 16), (200, 17), (3200,)])
def test_rotation_tables_of_another_shape_are_refused(shape):
    """The library is given addresses: with fewer values it would read what lies behind them."""
    q, k, v = random_qkv(SHAPE)
    right, wrong = np.ones((200, 16)), np.ones(shape)
    vcattn.attention(q, k, v, rope=vcattn.Rope("half", (32, 0, 0), cos=right, sin=right))
    for tables in ({"cos": wrong, "sin": right}, {"cos": right, "sin": wrong}):
        for function in (vcattn.attention, vcattn.explain):
            with pytest.raises(vcattn.InvalidArgumentError, match=r"rope\.(cos|sin).*\(200, 16\)"):
                function(q, k, v, rope=vcattn.Rope("half", (32, 0, 0), **tables))


def test_masked_arrays_are_refused_instead_of_losing_their_mask():
    q, k, v = random_qkv(SHAPE)
    masked = np.ma.array(v, mask=np.ones_like(v, bool))
    with pytest.raises(vcattn.InvalidArgumentError, match="v.*masked array.*key_mask"):
        vcattn.attention(q, k, masked)
    with pytest.raises(vcattn.InvalidArgumentError, match="key_mask.*masked array"):
        vcattn.attention(q, k, v, key_mask=np.ma.array(np.ones((1, 200), bool)))


@pytest.mark.parametrize("saved", ["abc", 5, [1, 2]])
def test_a_saved_state_is_bytes(saved):
    with pytest.raises(vcattn.InvalidArgumentError, match="saved.*save()"):
        vcattn.GroupState(saved)


def test_a_saved_state_from_any_buffer_of_bytes():
    q, k, v = random_qkv(SHAPE)
    state = vcattn.GroupState()
    vcattn.attention(q, k, v, state=state, step=0)
    saved = state.save()
    want = vcattn.attention(q, k, v, state=vcattn.GroupState(saved), step=1)
    for kind in (bytearray, memoryview):
        got = vcattn.attention(q, k, v, state=vcattn.GroupState(kind(saved)), step=1)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("at", [0, 5, 40, -1])
def test_a_damaged_saved_state_is_refused(at):
    q, k, v = random_qkv(SHAPE)
    state = vcattn.GroupState()
    vcattn.attention(q, k, v, state=state, step=0)
    saved = bytearray(state.save())
    saved[at] ^= 0x41
    with pytest.raises(vcattn.StateError):
        vcattn.attention(q, k, v, state=vcattn.GroupState(saved), step=1)
