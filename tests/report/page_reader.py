"""A page as a browser without a script reads it, and what holds for every page."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser


class Reader(HTMLParser):
    """A page as a browser without a script reads it: its tags with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def read(page: str) -> Reader:
    """The page, after what holds for every page: whole, no address of a host, headings, labels, one policy that holds."""
    reader = Reader(page)
    assert not reader.open
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in page
    for tag, attributes in reader.tags:
        assert tag not in ("link", "img", "iframe", "base", "form", "object")
        for name, value in attributes.items():
            assert not name.startswith("on"), "no handlers in attributes"
            assert name not in ("src", "style", "xlink:href")
            assert name != "href" or (value or "").startswith("#")
    names = [tag for tag, _ in reader.tags]
    assert names.count("main") == names.count("h1") == names.count("script") == names.count("style") == 1
    assert next(attributes for tag, attributes in reader.tags if tag == "html")["lang"] == "en"
    keys = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(keys) == len(set(keys))
    for tag, attributes in reader.tags:
        if tag == "svg":
            assert attributes["aria-label"]
        if tag == "a":
            assert (attributes["href"] or "").removeprefix("#") in keys
    policy = next(a["content"] for _, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy") or ""
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        inside = page[page.index(f"<{tag}>") + len(tag) + 2 : page.index(f"</{tag}>")]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    return reader
