"""How the served model speaks: tool dialect, reasoning tags, compiler of grammars. Chosen once, from the template or by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ridgeline.engine.words import Words
from ridgeline.sampling.grammar import GrammarCompiler
from ridgeline.sampling.thinking import ThinkMarks
from ridgeline.text.reasoning import ThinkTags, choose_tags
from ridgeline.text.tools.base import Dialect
from ridgeline.text.tools.choose import choose_dialect, keeps_special, presents_tools


@dataclass(frozen=True, eq=False)
class Manner:
    """dialect: how calls are written; tags: around reasoning, None for a model that does not reason; told: the template presents tools;
    knows_developer: it tells the developer's messages from the system's, which most do not."""

    words: Words
    dialect: Dialect
    tags: ThinkTags | None
    told: bool
    knows_developer: bool = False

    @cached_property
    def grammars(self) -> GrammarCompiler:
        """Costs nothing until the first grammar."""
        return GrammarCompiler(self.words.tokenizer, self.words.stop_ids)

    @cached_property
    def marks(self) -> ThinkMarks | None:
        return None if self.tags is None else ThinkMarks(self.words.tokenizer, self.tags, self.words.stop_ids)

    @cached_property
    def calls_are_special(self) -> bool:
        """Markers of calls are control tokens here: they must be kept in the text to be read."""
        return keeps_special(self.dialect, self.words.tokenizer)

    @cached_property
    def tags_are_special(self) -> bool:
        return self.tags is not None and bool({self.tags.open, self.tags.close} & set(self.words.tokenizer.control.ids))


def manner_of(words: Words, template: str | None = None, tool_parser: str | None = None, reasoning_parser: str | None = None) -> Manner:
    """From the template in use (the model's own unless given). Raises `UserError` for a parser that nobody knows."""
    source = template if template is not None else words.tokenizer.chat_template
    dialect, tags = choose_dialect(source, tool_parser), choose_tags(source, reasoning_parser)
    return Manner(words, dialect, tags, presents_tools(source), "developer" in (source or ""))
