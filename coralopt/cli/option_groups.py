"""Option groups: a frozen dataclass whose fields are options, taken as one parameter by every command that has them.

A field is declared as ``name: type = option(default, "help")``, or with an annotation that is an option already
(``name: Annotated[type, typer.Option(...)] = default``). A group may extend another. The class attribute ``panel`` names the
panel of the help screen for those options that name none themselves; without it they stand among the command's own options.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo

Result = TypeVar("Result")


@dataclass(frozen=True)
class OptionGroup:
    """Base of all groups, which are frozen dataclasses of options."""

    panel: ClassVar[str | None] = None


def option(
    default: Any,
    text: str,
    *names: str,
    metavar: str | None = None,
    least: float | None = None,
    most: float | None = None,
    check: Callable[[Any], Any] | None = None,  # Any: of a value of the field's type
) -> Any:  # Any: as dataclasses.field, it stands where a value of the field's type does
    """A field of a group.

    Args:
        default: Its value when the option is not given; ``...`` for an option that must be.
        text: What the help screen says of it.
        names: How it is written, ``"--output", "-o"``; by default as the field is called. One name of a truth value, such as
            ``"--sort"``, makes a flag without its opposite.
        metavar: What the help screen calls its value.
        least, most: Range of a number.
        check: Given the value before the command begins; gives it back, or raises what is wrong with it.
    """
    info = typer.Option(*names, help=text, metavar=metavar, min=least, max=most, callback=check)
    return field(default=MISSING if default is ... else default, metadata={"option": info})


def takes_groups(command: Callable[..., Result]) -> Callable[..., Result]:
    """A command with parameters annotated by an ``OptionGroup`` -> the same command as typer reads it.

    The fields of a group stand in the signature where the group stood; they are collected into the group again before
    ``command`` is called.

    Raises:
        TypeError: A field of a group is no option, or two options have one name.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type[OptionGroup]] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        annotation = hints[parameter.name]
        if isinstance(annotation, type) and issubclass(annotation, OptionGroup):
            groups[parameter.name] = annotation
            parameters += _parameters_of(annotation)
        else:
            parameters.append(parameter.replace(annotation=annotation, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def flat(**values: object) -> Result:
        collected = {
            name: group(**{item.name: values.pop(item.name) for item in fields(group)})
            for name, group in groups.items()
        }
        return command(**values, **collected)

    names = [parameter.name for parameter in parameters]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise TypeError(f"{command.__name__}: more than one option is called {', '.join(twice)}")
    del flat.__wrapped__
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def _parameters_of(group: type[OptionGroup]) -> list[inspect.Parameter]:
    """The fields of a group as keyword parameters, each with the group's panel."""
    hints = get_type_hints(group, include_extras=True)
    parameters = []
    for item in fields(group):
        name, hint = item.name, hints[item.name]
        default = inspect.Parameter.empty if item.default is MISSING else item.default
        if "option" in item.metadata:
            hint = Annotated[hint, item.metadata["option"]]
        if get_origin(hint) is not Annotated:
            raise TypeError(f"{group.__name__}.{name}: expected option(default, help)")
        kind, *extras = get_args(hint)
        extras = [_in_panel(extra, group.panel) if isinstance(extra, OptionInfo) else extra for extra in extras]
        annotation = Annotated[(kind, *extras)]  # type: ignore[valid-type]
        parameters.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        )
    return parameters


def _in_panel(option: OptionInfo, panel: str | None) -> OptionInfo:
    option = copy.copy(option)
    option.rich_help_panel = option.rich_help_panel or panel
    return option
