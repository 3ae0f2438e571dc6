"""What to do to get from one plan to the next: instances to start, to stop, to keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from coralopt.errors import PlanError
from coralopt.plan.document import Plan
from coralopt.plan.files import write_text
from coralopt.plan.parts import PlannedInstance, PlanPart


class InstanceChange(PlanPart):
    """One serving template in one region, before and after."""

    name: str = Field(description="The instance name, equal in both plans.")
    model: str
    phase: Literal["prefill", "decode", "mixed"]
    region: str
    nodes: dict[str, int] = Field(description="Node configuration -> nodes of one instance.")
    before: int = Field(ge=0, description="Instances that run before.")
    after: int = Field(ge=0, description="Instances that the new plan wants.")
    price_usd_h: float = Field(ge=0, description="Price of one instance in the new plan, or in the old one, USD/h.")
    start: int = Field(ge=0, description="Instances to add; each is charged K times its price.")
    stop: int = Field(ge=0, description="Instances to drain and shut down.")
    keep: int = Field(ge=0, description="Instances that go on.")

    @staticmethod
    def of(item: PlannedInstance, before: int, after: int) -> InstanceChange:
        """The change of a planned instance's count."""
        return InstanceChange(
            name=item.name,
            model=item.model,
            phase=item.phase,
            region=item.region,
            nodes=item.nodes(),
            before=before,
            after=after,
            price_usd_h=item.price_usd_h,
            start=max(0, after - before),
            stop=max(0, before - after),
            keep=min(before, after),
        )


class PlanDifference(PlanPart):
    """From one plan to another. Templates that do not change are listed too."""

    format: Literal["coralopt-difference"] = "coralopt-difference"
    version: Literal[1] = 1
    changes: tuple[InstanceChange, ...] = Field(description="Sorted by name.")

    @property
    def start(self) -> int:
        """Instances to add in all."""
        return sum(change.start for change in self.changes)

    @property
    def stop(self) -> int:
        """Instances to stop in all."""
        return sum(change.stop for change in self.changes)

    @property
    def keep(self) -> int:
        """Instances that go on in all."""
        return sum(change.keep for change in self.changes)

    @property
    def started_usd_h(self) -> float:
        """Price of the instances to add, USD/h; times K it is the initialization penalty."""
        return sum(change.start * change.price_usd_h for change in self.changes)

    def to_json(self) -> str:
        """The document as text; equal differences give equal bytes."""
        return json.dumps(self.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n"

    def save(self, path: str | Path) -> None:
        """Write it to ``path``, first beside it, then renamed.

        Raises:
            PlanError: The file cannot be written.
        """
        write_text(path, self.to_json(), "the difference")

    @staticmethod
    def load(path: str | Path) -> PlanDifference:
        """Read a difference.

        Raises:
            PlanError: No such file, or not a difference.
        """
        source = Path(path)
        try:
            return PlanDifference.model_validate_json(source.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise PlanError(f"{source}: the difference cannot be read: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(part) for part in first["loc"]) or "the document"
            raise PlanError(f"{source}: not a difference of plans: {place}: {first['msg']}") from error


def difference(before: Plan | None, after: Plan) -> PlanDifference:
    """What changes between two plans, by instance name.

    Args:
        before: The plan that runs; ``None`` when nothing does.
        after: The plan wanted.
    """
    wanted = {item.name: item for item in after.instances}
    running = {} if before is None else {item.name: item for item in before.instances}
    changes = []
    for name in sorted({*wanted, *running}):
        old, new = running.get(name), wanted.get(name)
        item = new or old
        assert item is not None
        changes.append(InstanceChange.of(item, 0 if old is None else old.count, 0 if new is None else new.count))
    return PlanDifference(changes=tuple(changes))
