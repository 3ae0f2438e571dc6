"""A strict reader of LP files in the dialect of CPLEX: what it does not know, or what readers take differently, is refused.

::

    Minimize | Maximize      [name:] expression [+ [ number x ^2 + number x * y ... ] / 2]
    Subject To               [name:] expression <= number        <, =<, >=, >, =>, = as well; < is <=
                             [name:] number <= expression [<= number]
                             [name:] z = 1 -> expression <= number        z binary, 0 or 1
    Bounds                   number <= x <= number, x >= number, x = number, x free, one a line
    General, Binary          names
    Semi-Continuous          names
    SOS                      [name:] S1 :: x : number y : number ...
    End

An expression is a sum of terms ``[number] name`` and constants; a name that comes twice adds up. Section words begin a line
and are no names; names begin with a letter or one of ``_!#$%&?@`'{}~"`` and may hold digits and ``. , ( ) [ ]``.
"""

from __future__ import annotations

import math
import re

from coralopt.solving.files.draft import Draft, ModelText, Number
from coralopt.solving.files.lp_tokens import RESERVED, Token, sections

_INFINITY = re.compile(r"inf(inity)?", re.I)


def read_lp(source: ModelText) -> Draft:
    """The model of an LP file.

    Raises:
        SolverError: A line is no LP, contradicts another one, or may be read in two ways.
        UnsupportedError: A section or an expression that is not linear.
    """
    draft, parts = Draft(source), sections(source)
    for section, tokens, _ in parts:
        parser = _Parser(source, draft, tokens)
        if section in ("max", "min"):
            draft.maximize = section == "max"
            parser.objective()
        elif section == "rows":
            while parser.tokens:
                parser.row()
        elif section == "bounds":
            parser.bounds()
        elif section == "sos":
            parser.sets()
        else:
            parser.kinds(section)
    _complete(draft)
    draft.examine_parts()
    return draft


class _Parser:
    """Reads statements off the tokens of one section."""

    def __init__(self, source: ModelText, draft: Draft, tokens: list[Token]) -> None:
        self.source, self.draft = source, draft
        #: The next one is the last of the list.
        self.tokens = tokens[::-1]
        #: Line of the token taken last.
        self.line = 0

    def _next(self, kind: str = "", ahead: int = 0) -> Token | None:
        """The token to come, if it is of this kind."""
        token = self.tokens[-1 - ahead] if len(self.tokens) > ahead else None
        if token is not None and not ahead:
            self.source.line = token.line
        return token if token is not None and (not kind or token.kind == kind) else None

    def _take(self, kind: str) -> str:
        """The text of the token to come, which is taken; empty when it is of another kind."""
        if not self._next(kind):
            return ""
        token = self.tokens.pop()
        self.line = token.line
        return token.text

    def _label(self) -> str:
        if not (self._next("name") and (after := self._next("colon", 1)) and after.text):
            return ""
        name, _ = self._take("name"), self._take("colon")
        if RESERVED.fullmatch(name):
            raise self.source.refuse(f"{name!r} is a word of the format and cannot be a name")
        return name

    def _column(self) -> str:
        name = self._take("name")
        if name not in self.draft.columns and RESERVED.fullmatch(name):
            raise self.source.refuse(f"{name!r} is a word of the format and cannot be the name of a column")
        return name

    def _signs(self) -> int:
        sign = 1
        while text := self._take("sign"):
            sign = -sign if text == "-" else sign
        return sign

    def _expression(self) -> tuple[dict[int, Number], Number]:
        """Coefficients by column, and the sum of the constants; ends before an operator, a label, or the section's end."""
        source = self.source
        terms: dict[int, Number] = {}
        constant: Number = 0
        first = True
        while first or self._next("sign"):
            sign = self._signs()
            if (word := self._next("product")) and word.text == "[":
                self._products(sign)
                first = False
                continue
            number, name = self._take("number"), self._column()
            if not number and not name:
                word = self._next()
                raise source.refuse(f"a term is missing before {word.text if word else 'the end of the section'!r}")
            value = sign * (source.figure(number) if number else source.figure("1"))
            if name:
                column = self.draft.new_column(name)
                terms[column] = terms.get(column, 0) + value
            else:
                constant += value
            first = False
        return terms, constant

    def _products(self, sign: int) -> None:
        """Squares and products of the objective: ``[ ... ] / 2``."""
        source, draft = self.source, self.draft

        def take(*texts: str) -> bool:
            word = self._next("product")
            return word is not None and word.text in texts and bool(self._take("product"))

        if draft.quadratic:
            raise source.refuse("the objective has two brackets of quadratic terms; write one")
        take("[")
        while not take("]"):
            own, number, name = self._signs(), self._take("number"), self._column()
            if take("*"):
                other = self._column()
            elif take("^") and self._take("number") == "2":
                other = name
            else:
                other = ""
            if not name or not other or self._next("number") or self._next("name"):
                raise source.refuse("quadratic terms are number x ^2 and number x * y")
            i, j = sorted((draft.new_column(name), draft.new_column(other)))
            value = sign * own * source.figure(number or "1")
            draft.quadratic[i, j] = draft.quadratic.get((i, j), 0) + (value if i == j else value / 2)
        if not take("/") or self._take("number") != "2":
            raise source.refuse("quadratic terms of the objective end with ] / 2, by which some readers divide always")

    def _operator(self) -> str:
        text = self._take("operator")
        return "<" if "<" in text else ">" if ">" in text else text

    def objective(self) -> None:
        self._label()
        if self._next():
            self.draft.cost, self.draft.offset = self._expression()
        if word := self._next():
            raise self.source.refuse(f"{word.text!r} in the objective; Subject To is missing before the rows")

    def row(self) -> None:
        source, draft = self.source, self.draft
        name = self._label()
        switch = ("", "")
        if len(self.tokens) > 3 and self.tokens[-4].kind == "arrow":
            column, equals, value = self._column(), self._operator() == "=", self._take("number")
            if not (column and equals and value and self._take("arrow")):
                raise source.refuse("an indicator is column = 0 or 1 -> row")
            switch = column, value
        terms, constant = self._expression()
        operator = self._operator()
        if not operator:
            word = self._next()
            raise source.refuse(f"{word.text if word else 'the end of the section'!r} where a row needs <=, >= or =")
        sides = {"<": -math.inf, ">": math.inf}
        if terms:
            right = self._right() - constant
            low, high = (sides["<"] if operator == "<" else right), (sides[">"] if operator == ">" else right)
        else:
            terms, inner = self._expression()
            left = constant - inner
            low, high = (sides["<"] if operator == ">" else left), (sides[">"] if operator == "<" else left)
            second = self._operator()
            if second and (second != operator or operator == "="):
                raise source.refuse("a row with two sides needs <= twice or >= twice")
            if second:
                right = self._right() - inner
                low, high = (low, right) if second == "<" else (right, high)
        if not terms:
            raise source.refuse("a row without any column")
        word = self._next()
        if word is not None and (word.kind == "operator" or (word.line == self.line and not self._next("colon", 1))):
            raise source.refuse(
                f"{word.text!r} behind the number of a row; columns stand on the left, rows on their own lines"
            )
        source.line = self.line
        # Rows without a name get one when all names are known.
        row = draft.new_row(name or f" {len(draft.rows) + 1}", low, high)
        draft.entries[row] = terms
        if switch[0]:
            draft.switch(row, *switch)

    def _right(self) -> Number:
        """The number on the right of a row."""
        sign, number = self._signs(), self._take("number")
        if not number:
            word = self._next()
            raise self.source.refuse(f"{word.text if word else 'nothing'!r} where the number of a row belongs")
        return sign * self.source.figure(number)

    def bounds(self) -> None:
        while self.tokens:
            line: list[Token] = []
            rest = self.tokens
            while rest and (not line or rest[-1].line == line[0].line):
                line.append(rest.pop())
            self.tokens = line[::-1]
            self._bound()
            self.tokens = rest

    def _bound(self) -> None:
        """One line of bounds."""
        source, draft = self.source, self.draft
        self._next()
        begins = self._next("name")
        left = "" if begins and not _INFINITY.fullmatch(begins.text) else self._limit()
        before = self._operator() if left else ""
        column = draft.column(self._column())
        if not left and (word := self._next("name")) and word.text.lower() == "free":
            self.tokens.pop()
            draft.set_bound("lower", column, -math.inf)
            draft.set_bound("upper", column, math.inf)
        else:
            behind = self._operator()
            right = self._limit() if behind else ""
            if (
                not (before or behind)
                or (left and not before)
                or (before and behind and (before != behind or before == "="))
            ):
                raise source.refuse(
                    "no bound: number <= column <= number, column >= number, column = number, column free"
                )
            for operator, limit, up in ((before, left, ">"), (behind, right, "<")):
                if operator == "=":
                    for side in ("lower", "upper"):
                        draft.set_bound(side, column, source.figure(limit))
                elif operator:
                    side = "upper" if operator == up else "lower"
                    draft.set_bound(side, column, source.bound(limit, side))
        if self.tokens:
            raise source.refuse(f"{self.tokens[-1].text!r} behind a bound; one a line, without coefficients")

    def _limit(self) -> str:
        """A number or an infinity with its sign, as text."""
        sign = "-" if self._signs() < 0 else ""
        word = self._next()
        if word is None or not (word.kind == "number" or _INFINITY.fullmatch(word.text)):
            raise self.source.refuse(f"{word.text if word else 'the end of the line'!r} where a bound's number belongs")
        return sign + self.tokens.pop().text

    def sets(self) -> None:
        source, draft = self.source, self.draft
        while self.tokens:
            name = f"s{len(draft.sets) + 1}"
            if (after := self._next("colon", 1)) and not ((far := self._next("colon", 2)) and far.line == after.line):
                name = self._take("name")
                self._take("colon")
            kind = self._take("name").upper()
            if kind not in ("S1", "S2") or not (self._take("colon") and self._take("colon")):
                raise source.refuse("a set is name: S1 :: column : weight column : weight, or S2")
            draft.new_set(name, kind)
            while self._next("name") and self._next("colon", 1) and self._next("name", 2) is None:
                if (third := self._next("", 2)) is None or third.kind == "colon":
                    break
                member, _, sign = self._take("name"), self._take("colon"), self._signs()
                draft.set_member(member, "-" * (sign < 0) + (self._take("number") or "nothing"))

    def kinds(self, section: str) -> None:
        draft = self.draft
        while self.tokens:
            if not self._next("name"):
                raise self.source.refuse(f"{self.tokens[-1].text!r} among the names of {section} columns")
            name = self._column()
            column = draft.column(name)
            if section == "semicontinuous":
                draft.semicontinuous.add(column)
                continue
            draft.integer.add(column)
            if section == "binary":
                if draft.lower.get(column, 0) != 0 or draft.upper.get(column, 1) != 1:
                    raise self.source.refuse(f"column {name!r} is binary and has bounds other than 0 and 1")
                draft.lower[column], draft.upper[column] = 0, 1


def _complete(draft: Draft) -> None:
    """What only the whole file tells: bounds beside each other, and names for rows without one."""
    for column, high in draft.upper.items():
        if high < 0 and column not in draft.lower:
            draft.doubt_column("negative-upper", column, "has a negative upper bound and no lower one; write both")
            draft.lower[column] = -math.inf
    named = {name for name in draft.rows if name[0] != " "}
    for name in list(draft.rows):
        plain = name if name[0] != " " else f"R{name[1:]}"
        while name[0] == " " and plain in named:
            plain += "_"
        draft.rows[plain] = draft.rows.pop(name)
