"""Tool calls under a grammar: a dialect's, for the tools that may be called, alone or beside another form. Knows no requests."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.errors import UserError
from ridgeline.sampling.grammar import Grammar, GrammarCompiler, GrammarSpec
from ridgeline.text.tools.base import Dialect, ToolSpec


def check_tools(compiler: GrammarCompiler, tools: Sequence[ToolSpec], *, strict_only: bool = False) -> None:
    """Raises `UserError` naming the first tool whose schema cannot be used; for `strict` tools every keyword must be enforceable."""
    for tool in tools:
        if tool.parameters is None or (strict_only and not tool.strict):
            continue
        try:
            compiler.compile(GrammarSpec("json_schema", {"type": "object", **tool.parameters}, lenient=not tool.strict))
        except UserError as error:
            text = f"the parameters of tool {tool.name!r} cannot be used: {error.message}"
            raise UserError(text, field="tools", value=tool.name, limit=error.limit, remedy=error.remedy) from None


def compile_calls(compiler: GrammarCompiler, dialect: Dialect, tools: Sequence[ToolSpec], parallel: bool = True) -> Grammar:
    """A grammar under which a reply is one call of these tools, or more where `parallel`. Raises `UserError` as `check_tools`."""
    check_tools(compiler, tools)
    return compiler.compile(GrammarSpec("calls", dialect.grammar(tools, parallel, compiler.spell)))


def compile_calls_or(
    compiler: GrammarCompiler, dialect: Dialect, tools: Sequence[ToolSpec], parallel: bool, answer: GrammarSpec
) -> Grammar:
    """A grammar under which a reply is either calls of these tools or an answer of this form. Raises `UserError` as both alone."""
    compiler.compile(answer)  # what is wrong with it is told in its own words
    check_tools(compiler, tools)
    return compiler.compile(GrammarSpec("either", (dialect.grammar(tools, parallel, compiler.spell), answer)))
