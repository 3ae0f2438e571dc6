"""pydantic's errors in the words of the scenario file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel, Tag, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from coralopt.scenario.file.document import Document
from coralopt.scenario.file.fields import NAME_FORM
from coralopt.scenario.file.requests import SLO_ALIASES
from coralopt.scenario.mistakes import MOST_MISTAKES, MistakeList, Path, suggest

_NAME_FORM = "letters, digits, '.', '_', '-' and '/', beginning with a letter or digit"
_MISSING, _UNKNOWN = "is missing", "unknown key"
_KINDS = {
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "finite_number": "a finite number",
    "invalid-json-value": "plain data",
}
_BOUNDS = {
    "greater_than": "gt",
    "greater_than_equal": "ge",
    "less_than": "lt",
    "less_than_equal": "le",
}
_SIGNS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
#: Thousands may be apart; a comma that is followed by anything but three digits is a decimal one.
_QUANTITY = re.compile(
    r"\s*[$€£]?\s*([-+]?(?:[0-9]{1,3}(?:[,_ ][0-9]{3})+|[0-9]+)(?:[.,][0-9]+)?(?:[eE][-+]?[0-9]+)?)"
    r"\s*([^\W\d_][^\s\d]*|[%$€£])?\s*"
)
#: Words of other tools -> the key that means the same.
_SYNONYMS = {
    **dict.fromkeys(("rps", "qps", "rate", "rpm", "throughput"), "requests_s"),
    **dict.fromkeys(("itl", "tbt", "inter"), "tpot_ms"),
    **dict.fromkeys(("prompt", "isl"), "input_tokens"),
    **dict.fromkeys(("completion", "osl"), "output_tokens"),
    **dict.fromkeys(("count", "nodes", "quantity", "quota"), "available"),
    **dict.fromkeys(("price", "cost", "usd"), "price_usd_h"),
}


def describe(value: object) -> str:
    """A value as the reader of a file would name it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"the truth value {str(value).lower()}"
    if isinstance(value, str):
        return f"the text '{value if len(value) <= 60 else value[:57] + '...'}'"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    return repr(value)


def _children(annotation: object, part: str | int) -> tuple[object, str]:
    """Type of ``part`` inside a value of type ``annotation``, and its description."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _children(arguments[0], part)
    if origin in (Union, UnionType):
        for option in arguments:
            tags = [extra.tag for extra in getattr(option, "__metadata__", ()) if isinstance(extra, Tag)]
            if part in tags:
                return option, ""
        children = [_children(option, part) for option in arguments]
        return next((child for child in children if child[0] is not None), (None, ""))
    if origin is dict:
        return arguments[1], ""
    if origin is list:
        return arguments[0], ""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(part, str):
        field = _fields(annotation).get(part)
        if field is not None:
            return field.annotation, field.description or ""
    return None, ""


def _fields(annotation: object) -> Mapping[str, FieldInfo]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Annotated, Union, UnionType):
        options = arguments[:1] if origin is Annotated else arguments
        return next((inner for option in options if (inner := _fields(option))), {})
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = dict(annotation.model_fields)
        for field in annotation.model_fields.values():
            if isinstance(field.validation_alias, AliasChoices):
                fields |= {str(name): field for name in field.validation_alias.choices}
        return fields
    return {}


def _walk(location: Path, annotation: object) -> tuple[object, str]:
    """Type of the mapping that contains the last part of ``location``, and the description of that part."""
    description, container = "", annotation
    for part in location:
        container = annotation
        annotation, own = _children(annotation, part)
        if not _is_tag(part):
            description = own
    return container, description


def _is_tag(part: str | int) -> bool:
    return isinstance(part, str) and part.startswith("<") and part.endswith(">")


def plain_path(location: Path) -> Path:
    """pydantic's location without the names of the forms that a value may take."""
    return tuple(part for part in location if not _is_tag(part) and part != "[key]")


def _quantity_hint(value: object, field: str, description: str) -> str:
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return description
    number = re.sub(r"[,_ ](?=[0-9]{3}(?![0-9]))", "", match[1]).replace(",", ".")
    unit = (match[2] or "").lower()
    factors = {"": 1.0, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "us": 1e-3, "min": 6e4}
    if field.endswith("_ms") and unit in factors:
        number = f"{float(number) * factors[unit]:g}"
    elif unit and field.endswith("_ms"):
        return description
    return f"write the plain number {number} without quotes or unit" + (
        f"; it is the {description}" if description else ""
    )


def _key_hint(key: str, fields: Mapping[str, FieldInfo]) -> str:
    hint = suggest(key, fields, "a key")
    meant = _SYNONYMS.get(re.split(r"[_-]", key.lower())[0])
    field = meant if meant in fields else next((name for name in fields if f"'{name}'" in hint), None)
    if field is None:
        # 'prefill' and 'prefill_s' mean the same key with another unit or none.
        field = next((name for name in fields if name.split("_")[0] == re.split(r"[_-]", key)[0] and "_" in name), None)
    if field is None:
        return hint
    description = fields[field].description or ""
    return f"did you mean '{field}'?" + (f" It is the {description}" if ", in " in description else "")


def _one(error: ErrorDetails, root: type[BaseModel]) -> tuple[Path, str, str]:
    kind, location, value = str(error["type"]), tuple(error["loc"]), error["input"]
    context = error.get("ctx", {})
    path = plain_path(location)
    container, description = _walk(location, root)
    last = str(path[-1]) if path else ""
    if location and location[-1] == "<count>":
        description = "nodes available, a whole number; or a mapping with available, price_usd_h, instance_type"
    if "[key]" in location:
        name = str(location[location.index("[key]") - 1])
        return path, f"'{name[:60]}' is no name", _NAME_FORM
    if kind == "missing":
        return path, _MISSING, description
    if kind == "extra_forbidden":
        return path, _UNKNOWN, _key_hint(last, _fields(container))
    if kind in _KINDS:
        expected = _KINDS[kind]
        if location and location[-1] == "<count>" and not isinstance(value, int | float):
            return (
                path,
                f"must be a whole number or a mapping, not {describe(value)}",
                "nodes available, or available: ...",
            )
        hint = _quantity_hint(value, last, description) if "number" in expected else description
        return path, f"must be {expected}, not {describe(value)}", hint
    if kind in _BOUNDS:
        limit = context[_BOUNDS[kind]]
        if last.endswith("_ms") and 0 < value < limit:
            description += f"; if {value:g} is in s, write {value * 1000:g}"
        shown = int(limit) if limit == int(limit) else limit
        return path, f"must be {_SIGNS[_BOUNDS[kind]]} {shown:,}, not {describe(value)}", description
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        return path, f"{describe(value)} is no choice here", _literal_hint(value, choices)
    if kind == "string_pattern_mismatch":
        named = context["pattern"] == NAME_FORM
        return path, f"{describe(value)} is no {'name' if named else last}", _NAME_FORM if named else description
    if kind == "value_error":
        return path, str(context.get("error", error["msg"])), ""
    message = str(error["msg"])
    return path, f"{message[:1].lower()}{message[1:]}, found {describe(value)}", description


def _literal_hint(value: object, choices: list[str]) -> str:
    hint = suggest(value, choices) if isinstance(value, str) else ""
    every = f"choose from {', '.join(choices)}"
    return f"{hint} {every}" if hint.startswith("did") and len(choices) > 1 else every


def explain(error: ValidationError, raw: object, mistakes: MistakeList, root: type[BaseModel] = Document) -> None:
    """Add every error of validating ``raw``, a document of this type, to the list, in the words of the file."""
    explained = [_one(item, root) for item in error.errors(include_url=False)[: 2 * MOST_MISTAKES]]
    # A mistyped key is one mistake, not also a missing one.
    meant = [
        (path[:-1], hint.split("'")[1]) for path, problem, hint in explained if problem == _UNKNOWN and "'" in hint
    ]
    mistyped = {(*place, SLO_ALIASES.get(name, name)) for place, name in meant}
    for path, problem, hint in explained:
        if not (problem == _MISSING and path in mistyped):
            mistakes.add(existing(raw, path), problem, hint)


def existing(raw: object, path: Path) -> Path:
    """``path`` up to the first part that is not there; pydantic names the kinds of a value after its place."""
    for depth, part in enumerate(path):
        if not isinstance(raw, dict | list):
            return path[:depth]
        try:
            raw = raw[part]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return path[: depth + 1]
    return path
