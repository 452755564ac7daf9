"""Which dialect a model speaks: told by its chat template, or by name. Knows all dialects, nothing of what they do."""

from __future__ import annotations

import re

from ridgeline.errors import UserError
from ridgeline.text.tokenizer import Tokenizer
from ridgeline.text.tools.base import Dialect
from ridgeline.text.tools.gemma import FUNCTION_GEMMA, GEMMA, GEMMA4
from ridgeline.text.tools.generic import GENERIC
from ridgeline.text.tools.hermes import HERMES
from ridgeline.text.tools.llama3 import LLAMA3
from ridgeline.text.tools.mistral import MISTRAL, MISTRAL_ARGS
from ridgeline.text.tools.xml import QWEN_XML

# The first whose mark the template holds is taken, so the more telling marks come first.
DIALECTS = (QWEN_XML, GEMMA4, FUNCTION_GEMMA, MISTRAL_ARGS, MISTRAL, HERMES, LLAMA3, GEMMA, GENERIC)
_TOOLS = re.compile(r"\btools\b")


def choose_dialect(template: str | None, name: str | None = None) -> Dialect:
    """The dialect called `name` (or one of its aliases), else the one that the template's source tells; "auto" is no name.

    Raises `UserError` for a name nobody has.
    """
    if name is not None and name != "auto":
        for dialect in DIALECTS:
            if name in (dialect.name, *dialect.aliases):
                return dialect
        known = ", ".join(sorted(dialect.name for dialect in DIALECTS))
        raise UserError(f"tool-call-parser {name!r} is not known", field="tool-call-parser", value=name, limit=known, remedy=f"use {known}")
    source = template or ""
    found = [dialect for dialect in DIALECTS if any(mark in source for mark in dialect.template_marks)]
    return found[0] if found else GENERIC


def presents_tools(template: str | None) -> bool:
    """Whether the template tells the model about the tools; where it does not, `prompt.with_tools` does."""
    code = "".join(re.findall(r"\{[%{](?:.|\n)*?[%}]\}", template or ""))
    return _TOOLS.search(re.sub(r"'[^'\n]*'|\"[^\"\n]*\"", "", code)) is not None


def keeps_special(dialect: Dialect, tokenizer: Tokenizer) -> bool:
    """Whether markers of the dialect are control tokens here, so that a reply must be read with `skip_special_tokens` off."""
    return any(marker in tokenizer.control.ids for marker in dialect.markers)
