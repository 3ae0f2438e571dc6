"""JSON documents of frozen dataclasses: packaged ones by name, others by path; every mistake at once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from coralopt.errors import Mistake, WorkloadError
from coralopt.types import Floats
from coralopt.workload.files.tables import open_text, refuse, replaced, shown

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, TypeAdapter
    from pydantic_core import CoreSchema

_Value = TypeVar("_Value")
#: A list of plain numbers as ``json.dumps`` spreads it over lines.
_NUMBERS = re.compile(r"\[\s*((?:[-+0-9.eE]+,?\s*)+)\]")


@dataclass(frozen=True)
class Numbers:
    """Annotation of a field: a number, or lists of numbers in the file and a float64 array in Python.

    Attributes:
        depth: Dimensions; 0 is one number.
        ge, gt, le, lt: Bounds on every number.
        least, most: Fewest and most entries of the outermost list.
    """

    depth: int = 1
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    least: int = 0
    most: int | None = None

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        schema: CoreSchema = core_schema.float_schema(
            ge=self.ge, gt=self.gt, le=self.le, lt=self.lt, allow_inf_nan=False
        )
        for level in range(self.depth, 0, -1):
            least, most = (self.least, self.most) if level == 1 else (None, None)
            schema = core_schema.list_schema(schema, min_length=least, max_length=most)
        written = core_schema.plain_serializer_function_ser_schema(_short)
        return core_schema.no_info_after_validator_function(self._read, schema, serialization=written)

    def _read(self, value: float | list[object]) -> float | Floats:
        from pydantic_core import PydanticCustomError

        if isinstance(value, float):
            return value
        try:
            return np.asarray(value, dtype=np.float64)
        except ValueError:
            raise PydanticCustomError("ragged", "rows must be of one length") from None


def _short(values: object) -> object:
    """Numbers with seven digits, enough for probabilities and short to store."""
    if isinstance(values, np.ndarray):
        return [_short(value) for value in values]
    number = float(f"{values:.7g}")
    return int(number) if number.is_integer() else number


@dataclass(frozen=True)
class DocumentKind(Generic[_Value]):
    """One kind of document.

    Attributes:
        value: Dataclass of the content, its arrays annotated with :class:`Numbers`.
        what: What it is called in messages, ``"generator"``.
        suffix: Ends of the packaged files' names before ``.json``; the document's format is ``coralopt-<suffix>``.
        tidy: Called with what was read; returns the final value and what is wrong with it beyond the types.
        loaded: Packaged ones that were read before.
    """

    value: type[_Value]
    what: str
    suffix: str
    tidy: Callable[[_Value], tuple[_Value, list[Mistake]]]
    loaded: dict[str, _Value] = field(default_factory=dict, repr=False)

    def packaged(self) -> tuple[str, ...]:
        """Names of those that come with coralopt."""
        end = f".{self.suffix}.json"
        folder = files("coralopt.workload").joinpath("data")
        return tuple(sorted(entry.name.removesuffix(end) for entry in folder.iterdir() if entry.name.endswith(end)))

    def load(self, name: str | Path) -> _Value:
        """A packaged document by name, or one from a file.

        Raises:
            WorkloadError: Neither a packaged name nor a file; or the file lists its mistakes.
        """
        if isinstance(name, str) and name in self.packaged():
            if name not in self.loaded:
                resource = files("coralopt.workload").joinpath("data", f"{name}.{self.suffix}.json")
                self.loaded[name] = self.parse(resource.read_text(encoding="utf-8"), name)
            return self.loaded[name]
        path = Path(name)
        if not path.is_file():
            names = ", ".join(self.packaged())
            raise WorkloadError(f"{name}: neither a packaged {self.what} ({names}) nor a file")
        with open_text(path) as text:
            return self.parse(text.read(), str(path))

    def parse(self, content: str, source: str) -> _Value:
        """The value of a JSON text; ``source`` is what messages call it.

        Raises:
            WorkloadError: Not JSON, or not such a document.
        """
        from pydantic import ValidationError

        try:
            document = json.loads(content)
        except (json.JSONDecodeError, RecursionError) as error:
            raise WorkloadError(f"{source}: not a {self.what} in JSON ({error})") from error
        mistakes = []
        if isinstance(document, dict):
            for key, expected in self._head().items():
                value = document.pop(key, "missing")
                if value != expected:
                    mistakes.append(Mistake(key, f"must be {expected!r}, not {shown(value)}"))
        try:
            parsed, more = self.tidy(self._adapter.validate_python(document))
        except ValidationError as error:
            items = error.errors(include_url=False)
            places = (".".join(str(part) for part in item["loc"]) or "document" for item in items)
            refuse(source, mistakes + [Mistake(place, item["msg"]) for place, item in zip(places, items, strict=True)])
            raise
        refuse(source, mistakes + more)
        return parsed

    # Nested data of many types: whoever looks inside knows which.
    def document(self, value: _Value) -> dict[str, Any]:
        """The value as plain JSON data."""
        return {**self._head(), **self._adapter.dump_python(value)}

    def save(self, value: _Value, path: str | Path) -> None:
        """Write one document, atomically; lists of numbers stay on one line."""
        text = json.dumps(self.document(value), indent=1, ensure_ascii=False, allow_nan=False)
        text = _NUMBERS.sub(lambda match: f"[{','.join(match[1].replace(',', ' ').split())}]", text)
        with replaced(Path(path)) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")

    @cached_property
    def _adapter(self) -> TypeAdapter[_Value]:
        from pydantic import ConfigDict, TypeAdapter, with_config

        adapter = TypeAdapter(with_config(ConfigDict(extra="forbid", allow_inf_nan=False))(self.value))
        # `coralopt.types` names arrays by text, so that it needs no numpy.
        adapter.rebuild(_types_namespace={"np": np, "npt": npt})
        return adapter

    def _head(self) -> Mapping[str, object]:
        return {"format": f"coralopt-{self.suffix}", "version": 1}
