# SPDX-License-Identifier: Apache-2.0
"""Entry points with other libraries' signatures, for code that is written against them.

    from vcattn.compat import sageattn      # instead of: from sageattention import sageattn
"""

from __future__ import annotations

from typing import Any

from ._attention import attention
from ._errors import MASK_HINT, UnsupportedError, refuse

# Keywords that such code passes and that ask for nothing beyond what is done here anyway: the K
# mean never changes the exact result, and fewer KV heads are told by their number.
_WITHOUT_EFFECT = ("smooth_k", "enable_gqa")


def sageattn(
    q: Any,
    k: Any,
    v: Any,
    tensor_layout: str = "HND",
    is_causal: bool = False,
    sm_scale: float | None = None,
    return_lse: bool = False,
    **kwargs: Any,
) -> Any:
    """``vcattn.attention`` with the signature of SageAttention's ``sageattn``.

    Args:
        q, k, v: [B, H, S, D] for ``tensor_layout="HND"``, [B, S, H, D] for "NHD".
        is_causal: must be False.
        sm_scale: None: 1/sqrt(D).
        return_lse: also return the natural-log LSE, FP32 [B, H, S].
        kwargs: ``attn_mask`` (None, or a bool mask that is one for all heads and queries:
            [B, 1, 1, S_kv] or [B, S_kv]), ``dropout_p`` (0), ``smooth_k`` and ``enable_gqa``
            (without effect), ``recipe`` (vcattn's own, default "auto"). What would be dropped
            silently is refused: any other keyword is a TypeError.

    Returns: O, or (O, LSE), in the dtype of q.

    Raises: UnsupportedError for is_causal and dropout; otherwise as ``vcattn.attention``.
    """
    if is_causal:
        raise UnsupportedError(
            "is_causal=True; allowed: False; hint: video DiTs attend both ways; for a causal model "
            "use the framework's own attention"
        )
    mask = kwargs.pop("attn_mask", None)
    if kwargs.pop("dropout_p", 0.0) != 0.0:
        raise UnsupportedError("dropout_p is not 0; allowed: 0 (inference)")
    recipe = kwargs.pop("recipe", "auto")
    for name in _WITHOUT_EFFECT:
        kwargs.pop(name, None)
    if kwargs:
        raise TypeError(
            f"sageattn() got a keyword that vcattn cannot honour: '{min(kwargs)}'; "
            f"allowed: attn_mask, dropout_p, recipe, {', '.join(_WITHOUT_EFFECT)}"
        )
    dtype = getattr(mask, "dtype", type(mask).__name__)
    if mask is not None and not str(dtype).endswith(".bool") and str(dtype) != "bool":
        raise refuse("attn_mask's dtype", dtype, "bool (True = attend)", MASK_HINT)
    return attention(
        q,
        k,
        v,
        layout=tensor_layout,
        scale=sm_scale,
        recipe=recipe,
        key_mask=mask,
        return_lse=return_lse,
    )
