"""Compiled functions whose machine code is kept on disk, and loads without what Numba needs to compile."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, TypeVar

import numba

_F = TypeVar("_F", bound=Callable[..., object])
_D = TypeVar("_D")


def compiled(**options: bool) -> Callable[[_F], _F]:
    """Compile a function on first use and keep its machine code: ``numba.njit(cache=True, **options)``."""

    # Numba's stub lists its options one by one.
    njit: Callable[..., Callable[[_F], _F]] = numba.njit

    def decorate(function: _F) -> _F:
        return loads_alone(njit(cache=True, **options)(function))

    return decorate


def loads_alone(dispatcher: _D) -> _D:
    """The same dispatcher, whose kept code loads without all of Numba's implementations of functions.

    Numba registers all of them, a quarter of a second, before it loads code that has been compiled against them and needs
    none. Where nothing is kept it registers them when it compiles. Other insides of Numba than expected change nothing.
    """
    try:
        from numba.core.runtime.nrt import rtsys

        cache = dispatcher._cache  # type: ignore[attr-defined]
        cache._guard_against_spurious_io_errors, cache._load_overload, rtsys.initialize  # noqa: B018
    except (AttributeError, ImportError):
        return dispatcher

    def load_overload(kept: Any, signature: object, context: object) -> object:
        # Machine code counts references to arrays by symbols that the runtime tells LLVM.
        rtsys.initialize(context)
        with kept._guard_against_spurious_io_errors():
            return kept._load_overload(signature, context)

    cache.load_overload = MethodType(load_overload, cache)
    return dispatcher
