"""What an agent tells whoever started it: sentences, and on a terminal what it is doing, in place."""

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from coreg_core.protocol.messages import Ask, Inquiry, ToSite
from coreg_core.protocol.plan import Plan
from coreg_wire.terminal.output import print_json


class Watching:
    """Notes on standard error, or as JSON; and what is under way, with its seconds, in place on a terminal."""

    def __init__(self, *, as_json: bool, console: Console | None = None):
        self._as_json = as_json
        self._console = Console(stderr=True) if console is None else console
        self._progress: Progress | None = None

    def note(self, text: str) -> None:
        if self._as_json:
            print_json({"event": "note", "text": text})
        else:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def message(self, message: ToSite) -> None:
        """What the coordinator says: the question that is answered, or a line where it deserves one."""
        from site_agent.session.progress import work_on
        from site_agent.session.wording import describe

        if isinstance(message, Ask | Inquiry):
            if self._as_json:
                kind = {"kind": message.kind.name} if isinstance(message, Inquiry) else {}
                print_json({"event": "asked", "question": message.question, "part": message.part, **kind})
        elif (text := describe(message)) is not None:
            self.close()
            self.note(text)
        if isinstance(message, Plan | Ask | Inquiry):  # a plan is factored, which may take longer than all questions
            self._show(work_on(message))

    def _show(self, text: str) -> None:
        if self._as_json or not self._console.is_terminal:
            return
        if self._progress is None:
            spinner, told = SpinnerColumn(), TextColumn("{task.description}", markup=False)
            self._progress = Progress(spinner, told, TimeElapsedColumn(), console=self._console, transient=True)
            self._progress.add_task(text, total=None)
            self._progress.start()
        else:
            self._progress.reset(self._progress.task_ids[0], total=None, description=text)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
