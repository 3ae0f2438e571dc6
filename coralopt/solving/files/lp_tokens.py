"""Tokens of LP files by section: what begins a section, what a token is, and which readers take otherwise."""

from __future__ import annotations

import re
from typing import NamedTuple

from coralopt.solving.files.draft import ModelText

_SECTIONS = {
    "max": r"max(imi[sz]e|imum)?",
    "min": r"min(imi[sz]e|imum)?",
    "rows": r"subject\s+to|such\s+that|s\.t\.|st\.?",
    "bounds": r"bounds?",
    "integer": r"generals?|gen|integers?|int",
    "binary": r"binar(y|ies)|bin",
    "semicontinuous": r"semi-continuous|semis?",
    "sos": r"sos",
    "end": r"end",
}
_UNSUPPORTED = (
    r"general\s+constraints?|gen(eral)?constrs?|semi\s*continuous|sos[12]|pwlobj|lazy(\s*constraints?)?|"
    r"user\s*cuts?|multi-objectives?|scenarios?"
)
_HEAD = re.compile(
    rf"\s*(?:(?P<unsupported>{_UNSUPPORTED})|"
    + "|".join(f"(?P<{k}>{v})" for k, v in _SECTIONS.items())
    + r")(?=[\s:]|$)",
    re.I,
)
_LETTERS = r"A-Za-z0-9_!#$%&?@`'{}~\""
_TOKEN = re.compile(
    rf"\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|(?P<arrow>->)|(?P<product>[][*/^])|(?P<operator><=|>=|=<|=>|<|>|=)|(?P<sign>[+-])|(?P<colon>:)"
    rf"|(?P<name>[{_LETTERS}][{_LETTERS}.,()\[\]]*))"
)
_MEANINGS = {"[": "quadratic terms", "]": "a bracket", "^": "powers", "*": "products", "/": "division"}
_MEANINGS |= {"->": "indicators", ";": "lines of lp_solve"}
#: Words of the format, which are no names.
RESERVED = re.compile(rf"free|nan|inf(inity)?|{_UNSUPPORTED}|" + "|".join(_SECTIONS.values()), re.I)


class Token(NamedTuple):
    kind: str
    text: str
    line: int
    #: Whether it stands right behind the one before it.
    glued: bool


def sections(source: ModelText) -> list[tuple[str, list[Token], list[str]]]:
    """Tokens by section, in the order of the file, and brackets that stay open."""
    parts: list[tuple[str, list[Token], list[str]]] = []
    ended = False
    #: Line and name of the section at hand, if it is not supported; HiGHS writes empty ones.
    refused: tuple[int, str] | None = None
    for line in source.lines():
        code = line.split("\\", 1)[0]
        if "*\\" in line and line.rsplit("*\\", 1)[1].strip():
            raise source.refuse("text stands behind a comment on its line; some readers skip it, some read it")
        if not code.strip():
            continue
        if ended:
            source.doubt("after-end", "there is more after End")
            break
        head = _HEAD.match(code)
        # Sets are often called sos1, sos2, ...
        named = head is not None and parts and parts[-1][0] == "sos" and code[head.end() :].lstrip()[:1] == ":"
        if head is not None and not named:
            section = str(head.lastgroup)
            refused = (source.line, head[0].strip()) if head["unsupported"] else None
            if code[head.end() :].lstrip()[:1] == ":":
                raise source.refuse(f"{head[0].strip()!r} is a word of the format and cannot be a name")
            first = not parts
            if first != (section in ("max", "min")):
                raise source.refuse(f"{head[0].strip()!r} where {'the objective' if first else 'no objective'} belongs")
            if section == "rows" and len(parts) > 1:
                raise source.refuse(f"{head[0].strip()!r} must follow the objective, once")
            ended = section == "end"
            if not ended and refused is None:
                parts.append((section, [], []))
            code = " " * head.end() + code[head.end() :]
        if refused is not None and code.strip():
            source.line, name = refused
            raise source.refuse(f"section {name!r} is not supported", True)
        if ended and code.strip():
            raise source.refuse("there is more after End")
        if not parts:
            raise source.refuse(f"{code.split()[0]!r} where Minimize or Maximize belongs; this is no LP or MPS file")
        _tokens(source, code, *parts[-1])
    if not parts:
        raise source.refuse("there is no objective; this is no LP or MPS file")
    if not ended:
        source.doubt("no-end", "the file ends without End: it may be cut off")
    return parts


def _tokens(source: ModelText, code: str, section: str, tokens: list[Token], opened: list[str]) -> None:
    """Add the tokens of a line to those of its section; ``opened`` holds the brackets that are open."""
    position, code = 0, code.rstrip()
    while position < len(code):
        match = _TOKEN.match(code, position)
        if match is None:
            sign = code[position:].lstrip()[0]
            raise source.refuse(f"{sign!r} is not supported: {_MEANINGS.get(sign, 'unknown sign')}", sign in _MEANINGS)
        kind = str(match.lastgroup)
        text, glued = match[kind], match.start(kind) == position and position > 0
        before, end = tokens[-1] if tokens else None, match.end()
        inside = bool(opened)
        if inside and kind == "name" and text.count("]") > text.count("["):
            # The bracket closes the products, not the name.
            end -= len(text) - text.index("]")
            text = text[: text.index("]")]
        known = text == "[" or inside or (text == "/" and before and before.text == "]")
        if (kind == "product" and not (section in ("max", "min") and known)) or (kind == "arrow" and section != "rows"):
            raise source.refuse(f"{text!r} is not supported here: {_MEANINGS[text]}", True)
        if text == "[" and kind == "product":
            opened.append(text)
        elif text == "]" and kind == "product":
            opened.pop()
        if kind == "operator" and text == ">" and before and before.text == "-" and glued:
            raise source.refuse("'->' is not supported: indicator constraints", True)
        if kind == "name":
            for left, right in ("()", "[]"):
                if text.count(left) != text.count(right):
                    raise source.refuse(
                        f"the name {text!r} has a bracket too many; products and powers are not supported"
                    )
            if (
                before
                and before.kind == "number"
                and (
                    ("e" in before.text.lower() and glued)
                    or (text[0] in "eE" and (glued or re.fullmatch(r"[eE][0-9]*", text)))
                    or (glued and re.fullmatch(r"[dD][0-9]+", text))
                )
            ):
                raise source.refuse(
                    f"{before.text + ' ' * (not glued) + text!r} may be a number or a product; rename {text!r}"
                )
        tokens.append(Token(kind, text, source.line, glued))
        position = end
