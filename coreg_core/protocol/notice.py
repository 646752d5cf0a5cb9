"""One event of either machine, for terminals, logs, pages and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Level: TypeAlias = Literal["info", "warning"]


@dataclass(frozen=True)
class Notice:
    """One event. A function beside each machine makes every kind of notice.

    Parameters
    ----------
    name
        of the kind of notice; the event of a log line.
    text
        a sentence for the operator; can be empty.
    level
        "warning" if the operator should act.
    run, site
        the subjects of the notice; can be empty.
    fields
        plain values, for programs.
    private
        it mentions a site's rows or models, so it is never logged.
    work
        an agent's work from now on, for a progress line.
    """

    name: str
    text: str = ""
    level: Level = "info"
    run: str = ""
    site: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    private: bool = False
    work: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The notice as one JSON object."""
        given = {"run": self.run, "site": self.site, "text": self.text}
        return {
            "event": self.name,
            "level": self.level,
            **{name: value for name, value in given.items() if value},
            **self.fields,
        }
