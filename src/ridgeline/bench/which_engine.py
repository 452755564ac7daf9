"""Which engine to look at first: a short tree of yes-or-no questions, each leaf with what it rests on.

What stands here was reported by others, with source and date; none of it was measured by us. Where it matters: `ridgeline bench ab`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was said, where, when. doubt: what speaks against relying on it, "" for nothing."""

    said: str
    source: str
    date: str
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Leaf:
    """engine: of `bench serve --engine` where it is one of those."""

    engine: str
    because: str
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """A question; `yes` is the leaf it leads to, otherwise the next question is asked. key: the option's name."""

    key: str
    words: str
    yes: Leaf


_CLARIFAI = "Clarifai, gpt-oss-120b on 2x H100 (https://www.clarifai.com/blog/comparing-sglang-vllm-and-tensorrt-llm-with-gpt-oss-120b)"
_DIGEST = "said in a digest; its numbers (`ridgeline bench report`) are held as a third party quotes them"
_DEMO = "workshop on inference at scale, demo F: Mistral-7B on one H100, 10 prompts with 1,656 tokens in common"

QUESTIONS: tuple[Ask, ...] = (
    Ask("cpu", "Will it run on CPUs only?", Leaf("llama.cpp", "made for it, and for small machines; this engine is for them too", (
        Evidence("`ridgeline bench peers FILE --peer-dir DIR` measures both on your machine", "README.md, table of peers", "2026-11-30"),
    ))),
    Ask("multimodal", "Do several models work on one request (pictures, sound, video)?", Leaf("M*", "walks a graph of components", (
        Evidence("20% lower latency than vLLM-Omni on BAGEL, up to 2.7x throughput on Qwen3-Omni speech", "arXiv 2606.12688, its authors",
                 "2026-06", "by the authors themselves"),
    ))),
    Ask("fleet", "Are there many servers, and sessions to be sent to the right one?", Leaf("Dynamo", "routes by what each cache holds", (
        Evidence("cost = weight x prefill blocks to compute + active decode blocks, the lowest wins", "Dynamo's documentation", "2026"),
    ))),
    Ask("simple", "Is it for trying things out, one request at a time?", Leaf("transformers", "nothing to set up, every new model", (
        Evidence("51 tok/s and 19 ms a token at batch 1", _DEMO, "2026-06-27", "a fifteenth of ten requests at once in vLLM"),
    ))),
    Ask("agents", "Do agents branch from long beginnings that they share?", Leaf("sglang", "a prefix tree, and requests sorted by it", (
        Evidence("up to 6.4x throughput, hit rates of 50 to 99%", "arXiv 2312.07104, its authors", "2023-12", "recalled, not read again"),
        Evidence("3 to 4x on two-turn branches", "workshop on inference at scale", "2026-06",
                 "others hash whole blocks and hit as well; on ShareGPT the same talk saw no significant difference"),
    ))),
    Ask("peak", "NVIDIA only, and is one request's latency worth building an engine for?", Leaf("tensorrt-llm", "compiled for the device", (
        Evidence("the fastest for a single request", _CLARIFAI, "2025-08-29", _DIGEST),
    ))),
)  # fmt: skip
DEFAULT = Leaf("vllm", "nothing above applies: the widest range of models and devices", (
    Evidence("the most tokens at 100 at once, and the first to answer", _CLARIFAI, "2025-08-29", _DIGEST),
    Evidence("ShareGPT: 6,095 to 16,042 total tok/s by its options alone", "GPUStack performance lab, gpt-oss-120b on 2x H100",
             "seen 2026-11-30", "defaults are not its best"),
))  # fmt: skip


def leaves() -> Iterator[tuple[str, Leaf]]:
    """(what leads there, leaf), in the order of the questions."""
    for question in QUESTIONS:
        yield question.words, question.yes
    yield "otherwise", DEFAULT


def walk(answer: Callable[[Ask], bool]) -> Leaf:
    """Ask until a yes."""
    return next((q.yes for q in QUESTIONS if answer(q)), DEFAULT)


def choose(answers: Mapping[str, bool]) -> Leaf:
    """By keys; what is not there is a no."""
    return walk(lambda q: answers.get(q.key, False))
