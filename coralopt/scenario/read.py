"""Text of a scenario file -> plain data with line numbers. Every mistake of the syntax is told with its place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

import yaml

from coralopt.errors import ScenarioError
from coralopt.scenario.mistakes import MistakeList, Path

#: Aliases can make a small file explode; no honest scenario comes near these.
_MOST_VALUES = 50_000
_DEEPEST = 40
#: Characters of YAML, and of JSON whose lines are told: it is read as YAML for them.
_MOST_YAML, _MOST_LINED = 1_000_000, 200_000
_PLAIN = "tag:yaml.org,2002:"


class _Loader(yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader):  # type: ignore[misc]
    """YAML with JSON's kinds of values only: no dates, no ``yes`` for true, no ``1:30`` for 90; ``1e3`` is a number."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - the base class has it so


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9][0-9_]*", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(_PLAIN + _tag, re.compile(rf"^(?:{_pattern})$"), _first)


class _Builder:
    """Builds plain data from composed YAML nodes and remembers the line of every key and list item."""

    def __init__(self, mistakes: MistakeList, lines: dict[Path, int]) -> None:
        self._mistakes = mistakes
        self._lines = lines
        self._values = 0

    def build(self, node: yaml.Node, path: Path = ()) -> object:
        self._values += 1
        if self._values > _MOST_VALUES or len(path) > _DEEPEST:
            raise RecursionError
        self._lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == _PLAIN + "map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _PLAIN + "seq":
            return [self.build(item, (*path, position)) for position, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._mistakes.add(path, f"the YAML tag '{node.tag}' is not allowed", "remove it")
        return None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        result: dict[str, object] = {}
        merged: dict[str, object] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._mistakes.add(path, "a key must be text", line=line)
            elif key_node.tag == _PLAIN + "merge":
                for part in value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]:
                    value = self.build(part, path)
                    merged = {**value, **merged} if isinstance(value, dict) else merged
            else:
                key = key_node.value
                if key in result:
                    first = self._lines.get((*path, key), 0)
                    self._mistakes.add((*path, key), f"the key appears twice, first in line {first}", "keep one", line)
                    continue
                self._lines[(*path, key)] = line
                result[key] = self.build(value_node, (*path, key))
        return {**result, **{key: value for key, value in merged.items() if key not in result}}

    def _scalar(self, node: yaml.ScalarNode, path: Path) -> object:
        kind, text = node.tag.removeprefix(_PLAIN), str(node.value)
        try:
            if kind == "null":
                return None
            if kind == "bool":
                return text.lower() == "true"
            if kind == "int":
                return int(text.replace("_", ""))
            if kind == "float":
                return float(re.sub(r"\.(?=inf|nan)", "", text.lower().replace("_", "")))
        except ValueError:
            return text
        if kind != "str":
            self._mistakes.add(path, f"the YAML tag '{node.tag}' is not allowed", "remove it")
        return text


#: What libyaml says -> what its reader can do about it.
_IN_WORDS = {
    "found character that cannot start any token": "no value begins so; indent with spaces, not tabs, and quote texts that "
    "begin with @, ` or %",
    "but found another document": "a second document begins here; keep one, without '---'",
}

#: What libyaml says where its scanner, which is ahead of its events, gives up at a depth that none of our files has.
_TOO_DEEP_TO_SCAN = "exceeded maximum nesting depth"


def _syntax(mistakes: MistakeList, language: str, problem: str, line: int, column: int) -> None:
    mistakes.add((), f"invalid {language} syntax in line {line}, column {column}: {problem}", line=line)
    mistakes.raise_any()


def _refuse_absurd(text: str, mistakes: MistakeList) -> None:
    """Count ahead of composing: its compiled code calls itself at every level, and too deep a file would end the process."""
    depth = values = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        values += isinstance(event, yaml.NodeEvent)
        if depth > _DEEPEST:
            raise RecursionError
        if values > _MOST_VALUES:
            _too_many(mistakes)


def _too_many(mistakes: MistakeList) -> None:
    mistakes.add((), f"the file holds more than {_MOST_VALUES:,} values; no scenario comes near that")
    mistakes.raise_any()


def _compose(text: str, mistakes: MistakeList) -> yaml.Node | None:
    loader: yaml.SafeLoader | None = None
    try:
        _refuse_absurd(text, mistakes)
        loader = _Loader(text)
        node: yaml.Node | None = loader.get_single_node()
        return node
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "unreadable"
        if problem == _TOO_DEEP_TO_SCAN:
            raise RecursionError from error
        problem = _IN_WORDS.get(problem, problem)
        _syntax(mistakes, "YAML", problem, mark.line + 1 if mark else 1, mark.column + 1 if mark else 1)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        column = error.position - text.rfind("\n", 0, error.position)
        _syntax(mistakes, "YAML", f"the character {error.character!r} is not allowed", line, column)
    except yaml.YAMLError as error:
        _syntax(mistakes, "YAML", str(error), 1, 1)
    finally:
        if loader is not None:
            loader.dispose()
    return None


def _json_pairs(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        raise KeyError(next(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
    return result


def _json_lines(text: str, lines: dict[Path, int]) -> None:
    """Fill ``lines`` where the JSON text is YAML too, which is nearly always; lines are a courtesy only."""
    try:
        _refuse_absurd(text, MistakeList(""))
        node = _Loader(text).get_single_node()
        if node is not None:
            _Builder(MistakeList(""), lines).build(node)
    except (yaml.YAMLError, RecursionError, ScenarioError):
        lines.clear()


def _values(data: object) -> int:
    """How many values there are, counted without going deeper by calls."""
    count, left = 0, [data]
    while left:
        value = left.pop()
        count += 1
        left += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return count


def parse_text(text: str, source: str, *, is_json: bool = False) -> tuple[object, dict[Path, int]]:
    """Read YAML or JSON text.

    Returns:
        The plain data, and the line (from 1) of every key and list item by its path.

    Raises:
        ScenarioError: invalid syntax, duplicate keys, or an empty file.
    """
    lines: dict[Path, int] = {}
    mistakes = MistakeList(source, lines)
    text = text.removeprefix("\ufeff")
    if not text.strip():
        mistakes.add((), "the file is empty", "it needs at least 'models' and 'pool'")
        mistakes.raise_any()
    if is_json:
        if text.count(",") > _MOST_VALUES:
            # Counted before anything is made of them.
            _too_many(mistakes)
        try:
            data = json.loads(text, object_pairs_hook=_json_pairs)
            if _values(data) > _MOST_VALUES:
                _too_many(mistakes)
            if len(text) <= _MOST_LINED:
                _json_lines(text, lines)
            return data, lines
        except json.JSONDecodeError as error:
            _syntax(mistakes, "JSON", error.msg, error.lineno, error.colno)
        except KeyError as error:
            mistakes.add((str(error.args[0]),), "the key appears twice in one mapping", "keep one")
        except (RecursionError, ValueError):
            mistakes.add((), "the file is nested too deeply or holds a number with too many digits")
        mistakes.raise_any()
    if len(text) > _MOST_YAML:
        mistakes.add((), f"the file has {len(text):,} characters; YAML may have {_MOST_YAML:,}, JSON more")
        mistakes.raise_any()
    try:
        node = _compose(text, mistakes)
        data = None if node is None else _Builder(mistakes, lines).build(node)
    except RecursionError:
        mistakes.add((), "the file is nested too deeply, or its aliases repeat too much or contain themselves")
        data = None
    mistakes.raise_any()
    if data is None:
        mistakes.add((), "the file is empty", "it needs at least 'models' and 'pool'")
        mistakes.raise_any()
    return data, lines


def read_file(file: FilePath) -> tuple[object, dict[Path, int]]:
    """Read a scenario file; ``.json`` is read as JSON, anything else as YAML.

    Raises:
        ScenarioError: the file cannot be read, is not UTF-8, or as for :func:`parse_text`.
    """
    mistakes = MistakeList(str(file))
    text = ""
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        mistakes.add((), f"the file is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}")
    except (OSError, ValueError) as error:
        mistakes.add((), f"the file cannot be read: {getattr(error, 'strerror', None) or error}")
    mistakes.raise_any()
    return parse_text(text, str(file), is_json=file.suffix.lower() == ".json")


def plain_data(data: Any, mistakes: MistakeList, path: Path = ()) -> object:
    """A copy of ``data`` made of dict, list, str, int, float, bool and None only; anything else is a mistake."""
    if len(path) > _DEEPEST:
        mistakes.add(path[:3], "is nested too deeply")
        return None
    if data is None or isinstance(data, bool | str):
        return data
    if isinstance(data, float):
        return float(data)
    if isinstance(data, int):
        if abs(data) >= 2**63:
            mistakes.add(path, "the number is too large", "no quantity here comes near it")
            return 0
        return int(data)
    if isinstance(data, Mapping):
        for key in data:
            if not isinstance(key, str):
                mistakes.add(path, f"the key {key!r} must be text", "put it in quotes")
        return {key: plain_data(value, mistakes, (*path, key)) for key, value in data.items() if isinstance(key, str)}
    if isinstance(data, list | tuple):
        return [plain_data(value, mistakes, (*path, position)) for position, value in enumerate(data)]
    if type(data).__module__ == "numpy" and getattr(data, "ndim", 1) == 0:
        return plain_data(data.item(), mistakes, path)
    mistakes.add(
        path, f"a value of type {type(data).__name__} is no plain data", "use text, numbers, lists or mappings"
    )
    return None
