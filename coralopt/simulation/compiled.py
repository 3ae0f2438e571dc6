"""How the simulator is compiled, and where its machine code is kept.

No fast-math anywhere: sums run in a fixed order, so that equal input gives equal bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

from coralopt.compiling import loads_alone
from coralopt.routing import ANSWER_SHARE, ANSWER_TOKENS
from coralopt.throughput.layer_times import SHORT_PASS

_F = TypeVar("_F", bound=Callable[..., object])
# Arrays and records inside compiled code have no static type worth naming.
Array = Any


#: The modules that are compiled into one another.
COMPILED_TOGETHER = ("compiled", "state", "queues", "kernels", "turns", "scheduling", "coordinator", "events", "idle")
_DIGEST = hashlib.sha256(
    b"".join(Path(__file__).with_name(f"{name}.py").read_bytes() for name in COMPILED_TOGETHER)
    + repr((SHORT_PASS, ANSWER_SHARE, ANSWER_TOKENS)).encode()
).hexdigest()


class _KeptCode:
    """Numba's file of kept machine code, where what cannot be read counts as not kept and other sources' code is not run.

    Numba unpickles an index before it compares stamps, and types in it name classes that may be gone by now; and it
    writes the index before the code, so that code of other sources stays under a new index if it is stopped in between.
    """

    def __init__(self, file: Any) -> None:
        # Numba's class has no types.
        self._file = file
        file._source_stamp = (file._source_stamp, _DIGEST)

    def load(self, key: object) -> object:
        try:
            stamp, code = self._file.load(key)
        except Exception:  # Unpickling unknown content raises anything; there may be nothing, too.
            return None
        return code if stamp == self._file._source_stamp else None

    def save(self, key: object, code: object) -> None:
        stamped = (self._file._source_stamp, code)
        try:
            self._file.save(key, stamped)
        except Exception:  # The index cannot be read, see above: begin with an empty one.
            self._file.flush()
            self._file.save(key, stamped)


def compiled(function: _F) -> _F:
    """Compile for other compiled functions, as :func:`entry` does. Python may not call it: what makes Python's arguments out
    of these takes a third of the time that compiling takes."""
    return _kept(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def entry(function: _F) -> _F:
    """Compile on first use, keep the machine code on disk until any of the compiled modules changes, run beside threads.

    Numba remakes kept code when the file of the function changes, not when a function changes that it calls in another
    file; so the stamp it compares is extended by a digest of all of them. Where that cannot be done nothing is kept.
    """
    return _kept(function)


def _kept(function: _F, **options: bool) -> _F:
    # Numba's stub lacks these options. Nothing here makes an array; counting references to those of a state, at every
    # call, would double the time of a simulation and of compiling it.
    njit: Callable[..., Callable[[_F], object]] = partial(numba.njit, nogil=True, _nrt=False, **options)
    try:
        # Numba's own type hides the cache that is extended here.
        kept: Any = loads_alone(njit(cache=True)(function))
        kept._cache._cache_file = _KeptCode(kept._cache._cache_file)
    except (AttributeError, RuntimeError):  # Other insides, or no folder to write to.
        kept = njit()(function)
    template = kept.get_call_template
    # Numba compiles anew for each constant and each width of integers: a quarter of all that is compiled here.
    kept.get_call_template = lambda args, kws: template(tuple(map(_wide, args)), kws)
    return cast("_F", kept)


def _wide(kind: numba.types.Type) -> numba.types.Type:
    plain = numba.types.unliteral(kind)  # type: ignore[no-untyped-call]
    return numba.int64 if isinstance(plain, numba.types.Integer) else plain
