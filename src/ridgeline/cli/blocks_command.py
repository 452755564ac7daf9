"""The `blocks` command: what the prefix cache does with a few prompts. Loads a tokenizer and no weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

import ridgeline.cli.args as args


def blocks(
    model: args.Model,
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT...", help="Served one after the other; @FILE reads one from a file.")],
    change: Annotated[
        list[int] | None, typer.Option(metavar="I", help="Add the first prompt with another letter at index I; several times.")
    ] = None,
    block_size: args.BlockSize = 16,
    pool: Annotated[int, typer.Option("--blocks", parser=args.count("--blocks"), metavar="N", help="Blocks of the KV pool.")] = 256,
    n: Annotated[int, typer.Option("--n", parser=args.count("--n"), metavar="N", help="Samples of a prompt: they share its blocks.")] = 1,
    gen: Annotated[int, typer.Option(parser=args.count("--gen"), metavar="N", help="Made-up tokens of each answer.")] = 0,
    policy: Annotated[list[str] | None, typer.Option(metavar="NAME", help="radix, hash; several times. Default: both.")] = None,
    tree: Annotated[bool, typer.Option("--tree", help="Show the prefix tree after each prompt.")] = False,
    json: args.Json = False,
) -> None:
    """Show what the prefix cache finds, shares and copies: hit tokens of tree and hash, block tables, the tree itself.

    \b
    Examples:
      ridgeline blocks smollm2 "Four score and seven years ago" "Four score and ten years ago" --block-size 4 --tree
      ridgeline blocks smollm2 "Four score and seven years ago our fathers" --change 18 --block-size 4
      ridgeline blocks smollm2 "Tell a story." --n 4 --gen 6 --block-size 4
      ridgeline blocks smollm2 "a b c d e f g h" "1 2 3 4 5 6 7 8" "a b c d" --block-size 4 --blocks 6 --tree
    """
    from pathlib import Path

    from ridgeline.bench.blocks import POLICIES, BlocksOptions, render, run, with_letter_changed
    from ridgeline.cli.output import print_json
    from ridgeline.engine.words import open_words
    from ridgeline.errors import UserError
    from ridgeline.formats.checkpoint import open_checkpoint
    from ridgeline.formats.pull import resolve

    asked = BlocksOptions(block_size, pool, n, gen, tuple(policy or POLICIES))  # type: ignore[arg-type]
    try:
        texts = [Path(p[1:]).read_text("utf8") if p.startswith("@") else p for p in prompts]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"a prompt's file cannot be read as UTF-8 text: {error}", field="PROMPT") from None
    texts += [with_letter_changed(texts[0], at) for at in change or ()]
    words = open_words(open_checkpoint(resolve(model)))

    def spell(ids: Sequence[int]) -> str:
        return words.tokenizer.decode(ids, skip_special=False, strip_first_space=False)

    report = run([words.encode(text) for text in texts], spell, asked)
    if json:
        print_json(report.as_json())
    else:
        typer.echo(render(report, tree=tree))
