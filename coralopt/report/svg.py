"""Marks of drawings as SVG text, with their colours and words.

Colours are classes, ``f0`` (areas), ``l0`` (lines) and ``t0`` (areas behind text), up to 7; ``drawing.css`` gives them
values for light and dark. All text is escaped on its way in. A drawing is 360 units wide, so that its text can be read on
a phone.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

from markupsafe import Markup, escape

#: Units from left to right.
WIDTH = 360
#: Different colours.
COLOURS = 8
#: Width of one character of the labels, about.
CHARACTER = 6.2


def element(name: str, *inside: str, **attributes: object) -> Markup:
    """An element; a text inside is escaped unless it is an element itself, ``_`` in a name of an attribute is ``-``."""
    pairs = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), short(value))
        for key, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), pairs, Markup("").join(escape(item) for item in inside))


def stylesheet() -> str:
    """The colours of all drawings, as CSS below the class ``coralopt``."""
    return files("coralopt.report").joinpath("drawing.css").read_text(encoding="utf-8")


def colour_numbers(names: Iterable[str]) -> dict[str, int]:
    """A colour for every name, in the order of the names; equal ones from the ninth on."""
    return {name: number % COLOURS for number, name in enumerate(dict.fromkeys(names))}


def standalone(drawing: Markup) -> str:
    """A drawing as a file of its own, with its colours."""
    start = drawing.index("viewBox=")
    box = drawing[start : drawing.index('"', start + 9) + 1]
    style = element("style", Markup(stylesheet()))
    root = f'<svg xmlns="http://www.w3.org/2000/svg" class="coralopt" {box}>'
    return f"{root}{style}{drawing}</svg>\n"


def svg(title: str, height: float, drawn: Iterable[str]) -> Markup:
    """A drawing of these marks, as wide as all are; the title is for screen readers."""
    box = f"0 0 {WIDTH} {short(float(height))}"
    return element("svg", *drawn, viewBox=box, role="group", aria_label=title, xmlns="http://www.w3.org/2000/svg")


def tipped(shape: Markup, tip: str) -> Markup:
    """A mark with a text that the pointer and a screen reader find."""
    return element("g", element("title", tip), shape, role="img", aria_label=tip, tabindex=0, class_="mark")


def text_at(words: str, x: float, y: float, **attributes: object) -> Markup:
    """Words whose base line begins at a place."""
    return element("text", words, x=x, y=y, **attributes)


def cut(words: str, width: float) -> str:
    """As many of the words as have room in so many units."""
    most = max(4, int(width / CHARACTER))
    return words if len(words) <= most else words[: most - 1] + "…"


def short(value: object) -> object:
    """Numbers with a tenth of a unit."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value
