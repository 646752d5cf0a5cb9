"""Observers of an agent: a console for an operator, a log for a service; and the questions to an
operator at a terminal.
"""

import asyncio
import os
import sys
import termios
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from rich.console import Console

from coreg_core.errors import CoregError, Refused, UsageError
from coreg_core.outcomes import Notice
from coreg_core.plan import PART, Plan
from coreg_wire.terminal.command_line import print_json, user_name
from coreg_wire.terminal.progress import WorkLine
from coreg_wire.terminal.service import Log, log_notice
from coreg_wire.terminal.text import echo, visible
from site_agent.identity.members import OTHERS
from site_agent.service.state_store import Decision

COMPARE = "Compare them with the operators of all sites by telephone. If they differ, refuse"
WIDEST = 160  # characters of a line at a terminal
EIGHT_WORDS = "eight words"  # a heading of what an operator is shown
NOT_CONFIRMED = "its operator did not confirm the eight words."
NOT_AGREED = "its operator refused it."
LOGIN = Path("/proc/self/loginuid")  # Linux: who logged in, whoever the process runs as
NO_LOGIN = 2**32 - 1  # of a service
# The other sites read this reason, so it has no words in it.
OTHER_WORDS = (
    "the eight words that its operator gave are not those of this run's members. Compare the words"
    " again by telephone: if they differ, another party poses as a site."
)


class OperatorConsole:
    """Prints sentences on standard error, or JSON on standard output; on a terminal also a progress
    line.
    """

    def __init__(self, *, as_json: bool, console: Console | None = None):
        self._as_json = as_json
        self._console = Console(stderr=True) if console is None else console
        self._line = WorkLine(self._console)

    def __call__(self, notice: Notice) -> None:
        if notice.text:
            self.note(notice.text)
        if notice.work:
            self._show(notice.work)

    def note(self, text: str) -> None:
        if self._as_json:
            print_json({"event": "note", "text": text})
        elif self._console.is_terminal:
            self.close()
            self._console.print(
                folded(visible(text)), highlight=False, markup=False, soft_wrap=True
            )
        else:  # a round is shorter than rich's work on its line
            print(visible(text), file=self._console.file, flush=True)

    def _show(self, text: str) -> None:
        if not self._as_json:
            self._line.show(text)

    def close(self) -> None:
        self._line.hide()


def folded(text: str) -> str:
    """The text with lines of at most `WIDEST` characters, of which the later ones are indented.

    A line that has no space to break at stays whole, such as a path.
    """
    lines = list[str]()
    for line in text.split("\n"):
        if len(line) <= WIDEST:
            lines.append(line)
            continue
        lines += textwrap.wrap(
            line,
            WIDEST,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


class ServiceLog:
    """One structured line per notice, without private ones."""

    def __init__(self, log: Log):
        self._log = log

    def __call__(self, notice: Notice) -> None:
        if not notice.private:
            log_notice(self._log, notice)


# --- questions ------------------------------------------------------------------------------------


def question_lines(about: Mapping[str, str]) -> Iterator[str]:
    """A plan's description, with a line for each part of a text."""
    for heading, text in about.items():
        first, *more = text.split(PART)
        yield f"  {heading + ':':<22} {first}"
        yield from (f"  {'':<22} {part}" for part in more)


def words_told(words: str, news: str) -> str:
    """The words that this site does not know yet, and what to do with them."""
    return f"the eight words of this study are not confirmed here ({news}):\n  {words}\n{COMPARE}"


def operator_name() -> str:
    """The user of the operating system who decides. Behind sudo it is the login, as the kernel
    knows it; variables of the environment could name anybody.
    """
    me = user_name(os.getuid())
    try:
        login = int(LOGIN.read_text())
    except (OSError, ValueError):
        return me
    if login in (NO_LOGIN, os.getuid()):
        return me
    return f"{user_name(login)} (as {me})"


def isatty() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def forget_typed() -> None:
    """What was typed before a question is no answer."""
    if isatty():
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


class Terminal:
    """Asks the operator of one run. ``before`` clears the line; UsageError without a terminal."""

    def __init__(self, *, consents: bool, before: Callable[[], None] = lambda: None):
        if consents and not isatty():
            raise UsageError(
                "the standard input is not a terminal, so the agent cannot ask for approval. Give"
                " --yes to take part, and --words with the eight words that the operators have"
                " compared; or use `coreg-agent serve` and `coreg-agent approve`."
            )
        self._consents = consents
        self._before = before

    async def decide(
        self, plan: Plan, about: Mapping[str, str], words: str, news: str
    ) -> Decision | CoregError:
        """The operator's decision, with what was shown. Without a terminal, an error: it ends the
        agent.
        """
        if words and not isatty():
            if OTHERS in news:
                echo(f"{words_told(words, news)}.", err=True)
                echo("If they are the same, start the agent again with these --words.", err=True)
                return Decision(False, OTHER_WORDS)
            give = f'--words "{words}", or words = "{words}" in agent.toml'
            return Refused(f"{words_told(words, news)}. If they are the same, give {give}.")
        self._before()
        forget_typed()
        if not self._consents and not words:
            return Decision(True, "")
        shown = dict(about) if self._consents else {}
        if self._consents:
            echo(f"\nThe plan of run {plan.run}:", err=True)
            for line in question_lines(about):
                echo(line, err=True)
        if words:
            shown[EIGHT_WORDS] = words
        try:
            reason = await refusal_of(words, news, consents=self._consents)
        except UsageError as error:  # the agent ends, and the run waits for it
            return error
        return Decision(not reason, reason, words, about=shown, by=operator_name())


async def refusal_of(words: str, news: str, *, consents: bool) -> str:
    """Why the operator at the terminal refuses, or "": first the words of the members, if they are
    not confirmed, then the plan that was shown.
    """
    if words:
        told = f"The eight words of its members ({news}):\n\n    {words}\n\n{COMPARE}."
        echo(f"\n{told}", err=True)
        if not await _yes("Do the other operators read the same eight words?"):
            return NOT_CONFIRMED
    if consents and not await _yes("Take part?"):
        return NOT_AGREED
    return ""


async def _yes(question: str) -> bool:
    """The answer y or n, asked until one is typed. UsageError at the end of the input."""
    while True:
        echo(f"{question} [y/n] ", err=True, nl=False)
        line = await _line()
        if not line:
            raise UsageError("the input ended at a question, and nothing is decided.")
        answer = line.strip().lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("n", "no"):
            return False
        echo("Type y, or n, which refuses the run for all sites. Ctrl-C decides nothing.", err=True)


async def _line() -> str:
    """A line of the terminal; the loop stays free for signals."""
    loop = asyncio.get_running_loop()
    terminal = sys.stdin.fileno()
    line: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        if not line.done():
            line.set_result(os.read(terminal, 4096).decode(errors="replace"))

    loop.add_reader(terminal, read)
    try:
        return await line
    finally:
        loop.remove_reader(terminal)
