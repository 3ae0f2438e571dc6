"""Launches as lines of a shell script: every word quoted, nothing expanded that was not meant to be."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from coralopt.runtime.launch import NodeLaunch

#: Fills ``own_address`` on the node itself; CORALOPT_ADDRESS wins where a node has several.
OWN_ADDRESS = 'own_address="${CORALOPT_ADDRESS:-$(hostname -I | cut -d" " -f1)}"'


def quoted(word: str, variable: str | None = None) -> str:
    """``word`` for a POSIX shell. Only ``${variable}`` is expanded, and inside double quotes."""
    if variable is None or f"${{{variable}}}" not in word:
        return shlex.quote(word)
    parts = word.split(f"${{{variable}}}")
    return f'"${{{variable}}}"'.join(shlex.quote(part) if part else "" for part in parts)


def command_lines(argv: Sequence[str], variable: str | None = None, prefix: str = "") -> str:
    """The command over several lines, an option and its value on each."""
    lines: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--") and lines[-1]:
            lines.append([])
        lines[-1].append(quoted(word, variable))
    return prefix + " \\\n  ".join(" ".join(line) for line in lines)


def exports(env: Mapping[str, str], variable: str | None = None) -> list[str]:
    return [f"export {name}={quoted(value, variable)}" for name, value in env.items()]


def own_address_lines(node: NodeLaunch) -> list[str]:
    return [OWN_ADDRESS, *(f'export {name}="$own_address"' for name in node.own_address)] if node.own_address else []


def serving_lines(nodes: Sequence[NodeLaunch], variable: str | None = None) -> list[str]:
    """The processes of one machine: in place of the shell, or side by side until the first one ends."""
    scripts = [
        [*own_address_lines(node), *exports(node.env, variable), command_lines(node.argv, variable, prefix="exec ")]
        for node in nodes
    ]
    if len(scripts) == 1:
        return scripts[0]
    return [*(line for script in scripts for line in ("(", *script, ") &")), "wait -n"]
