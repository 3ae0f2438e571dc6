"""Option groups: dataclasses of options, flattened for typer and collected again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from coralopt.cli.option_groups import OptionGroup, takes_groups


@dataclass(frozen=True)
class Size(OptionGroup):
    """A group in a panel of its own, with a required option."""

    panel = "Size"

    width: Annotated[int, typer.Option(min=1, help="In cells.")]
    height: Annotated[int, typer.Option(help="In cells.")] = 2


@dataclass(frozen=True)
class ColouredSize(Size):
    """A group that extends another; a list, and an option with a panel of its own."""

    colour: Annotated[list[str] | None, typer.Option("--colour", "-c", rich_help_panel="Paint")] = None


def app(command: object) -> typer.Typer:
    """An application of one command."""
    application = typer.Typer()
    application.command()(command)  # type: ignore[type-var]
    return application


@takes_groups
def draw(name: Annotated[str, typer.Argument()], size: ColouredSize, bold: bool = False) -> None:
    """Draw NAME."""
    typer.echo(f"{name} {size} {bold}")


def test_options_become_the_group() -> None:
    """Given and default values arrive in the dataclass; other parameters stay as they are."""
    result = CliRunner().invoke(app(draw), ["x", "--width", "3", "-c", "red", "-c", "blue", "--bold"])
    assert result.output.strip() == "x ColouredSize(width=3, height=2, colour=['red', 'blue']) True"
    assert CliRunner().invoke(app(draw), ["x"]).exit_code == 2
    assert CliRunner().invoke(app(draw), ["x", "--width", "0"]).exit_code == 2


def test_help_shows_panels() -> None:
    """The options of a group stand in its panel, one with a panel of its own in that; help texts stay."""
    text = CliRunner().invoke(app(draw), ["--help"]).output
    assert "Draw NAME." in text
    own, size, paint = text.index("Options"), text.index("─ Size"), text.index("─ Paint")
    assert own < text.index("--bold") < size < text.index("--height") < paint < text.index("--colour")


def test_two_options_of_one_name_are_a_mistake_of_the_programmer() -> None:
    """Said when the command is declared, not when it is called."""

    def twice(size: Size, height: int = 0) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="more than one option is called height"):
        takes_groups(twice)
