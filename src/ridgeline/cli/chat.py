"""`ridgeline chat`: a conversation at the terminal, or line by line from a pipe. The history is here and nowhere else."""

from __future__ import annotations

import sys

from ridgeline.cli.output import note
from ridgeline.cli.report import closing_report, notes
from ridgeline.cli.show_spec import LEGEND, Painter, summary
from ridgeline.cli.start import starting
from ridgeline.engine.choice import Choice
from ridgeline.engine.llm import LLM
from ridgeline.errors import UserError
from ridgeline.options import Options
from ridgeline.types import SamplingParams

HELP = "/exit or Ctrl-D ends, /clear forgets the conversation, Ctrl-C stops an answer"


def converse(options: Options, params: SamplingParams, *, system: str | None, show_spec: bool = False) -> int:
    """Returns the exit code: 0, 2 when a piped line could not be answered, 130 after two Ctrl-C at the prompt."""
    with starting():
        llm = LLM.from_options(options, lambda words, limits: words.require_template())
    person = sys.stdin.isatty()
    for line in notes(llm, options):
        note(f"note: {line}")
    if person:
        note(f"{llm.model.plan.model}: {llm.model.plan.max_model_len} tokens of context. {HELP}.")
    if show_spec and sys.stdout.isatty():
        note(LEGEND)
    return _Talk(llm, params, system, person, show_spec).run()


class _Talk:
    """Mutable: the messages so far and the last sequence, for the report."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None, person: bool, show_spec: bool) -> None:
        self._llm, self._params, self._person, self._show_spec = llm, params, person, show_spec
        self._first = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._first)
        self._last: Choice | None = None

    def run(self) -> int:
        code, interrupts = 0, 0
        while interrupts < 2:
            try:
                line = self._read()
            except KeyboardInterrupt:
                interrupts += 1
                note("" if interrupts == 2 else f"\n({HELP})")
                continue
            interrupts = 0
            if line is None or line.strip() in ("/exit", "/bye", "/quit"):
                break
            if line.strip() == "/clear":
                self._messages = list(self._first)
            elif line.strip():
                code = 2 if not self._turn(line) and not self._person else code
        if self._last is not None and self._person:
            closing_report(self._llm, self._last)
        return 130 if interrupts == 2 else code

    def _read(self) -> str | None:
        try:
            if self._person:
                return input("> ")
            line = sys.stdin.readline()
            return line.removesuffix("\n") if line else None
        except EOFError:
            return None

    def _turn(self, line: str) -> bool:
        """Ask and answer; what was said before Ctrl-C stays in the history. False when this message cannot be answered."""
        self._messages.append({"role": "user", "content": line})
        said = ""
        try:
            ids = self._llm.model.text.render(self._messages)[1]
            painter = Painter(self._llm.model.text.tokenizer, self._show_spec and sys.stdout.isatty())
            try:
                for seq in self._llm.stream(ids, self._params):
                    self._last = seq
                    said += seq.delta
                    sys.stdout.write(painter.paint(seq))
                    sys.stdout.flush()
                sys.stdout.write(painter.finish())
            except KeyboardInterrupt:
                note("\n(stopped)")
        except UserError as error:
            self._messages.pop()
            note(f"error: {' '.join(str(error).split())}")
            return False
        sys.stdout.write("\n")
        sys.stdout.flush()
        if self._show_spec and self._last is not None:
            note(f"({summary(self._last)})")
        self._messages.append({"role": "assistant", "content": said})
        return self._last is None or self._last.finish != "error" or self._failed(str(self._last.stop_reason))

    @staticmethod
    def _failed(why: str) -> bool:
        note(f"error: generation failed: {why}")
        return False
