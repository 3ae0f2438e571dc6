"""Option groups: a frozen dataclass whose fields are options, taken as one parameter by every command that has them.

A field is declared as a typer option is, ``name: Annotated[type, typer.Option(...)] = default``; one without a default must
be given. A group may extend another. The class attribute ``panel`` names the panel of the help screen for those options that
name none themselves; without it they stand among the command's own options.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Annotated, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from typer.models import OptionInfo

Result = TypeVar("Result")


class OptionGroup:
    """Base of all groups; subclasses are frozen dataclasses of options."""

    panel: ClassVar[str | None] = None


def takes_groups(command: Callable[..., Result]) -> Callable[..., Result]:
    """A command with parameters annotated by an ``OptionGroup`` -> the same command as typer reads it.

    The fields of a group stand in the signature where the group stood; they are collected into the group again before
    ``command`` is called.

    Raises:
        TypeError: A group is no dataclass, one of its fields is no option, or two options have one name.
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
            name: group(**{field: values.pop(field) for field in _names(group)}) for name, group in groups.items()
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


def _names(group: type[OptionGroup]) -> list[str]:
    if not is_dataclass(group):
        raise TypeError(f"{group.__name__}: an option group is a frozen dataclass")
    return [field.name for field in fields(group)]


def _parameters_of(group: type[OptionGroup]) -> list[inspect.Parameter]:
    """The fields of a group as keyword parameters, each with the group's panel."""
    hints = get_type_hints(group, include_extras=True)
    parameters = []
    for name in _names(group):
        default = getattr(group, name, inspect.Parameter.empty)
        if get_origin(hints[name]) is not Annotated:
            raise TypeError(f"{group.__name__}.{name}: expected Annotated[type, typer.Option(...)]")
        kind, *extras = get_args(hints[name])
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
