"""`LLM`: many prompts in, all answers out, with the names that vLLM users know. Knows nothing of terminals and HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from typing import Any

from ridgeline.engine.choice import Choice
from ridgeline.engine.core import EngineCore
from ridgeline.engine.loader import Accept, LoadedModel, load, make_core
from ridgeline.engine.request import EngineRequest, RequestState, prepare
from ridgeline.errors import UserError
from ridgeline.options import Options, make_options
from ridgeline.types import RequestOutput, SamplingParams

Prompt = str | Many[int] | Mapping[str, Any]
Message = Mapping[str, Any]
Params = SamplingParams | Many[SamplingParams] | None


class LLM:
    """A loaded model that answers lists of prompts. Not for use from several threads at once.

    LLM("smollm2", max_model_len=4096, threads=2, kv_cache_dtype="f16"): options as in `ridgeline.options.Options`.
    Prefixes stay cached from call to call. `core` is the engine itself: its metrics, its trace.
    Raises `UserError` for a model or an option that cannot be used.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self.model: LoadedModel = load(make_options(model, options))
        self.core: EngineCore = make_core(self.model, paced=False)

    @classmethod
    def from_options(cls, options: Options, accept: Accept | None = None) -> LLM:
        return cls.from_loaded(load(options, accept))

    @classmethod
    def from_loaded(cls, model: LoadedModel) -> LLM:
        llm = cls.__new__(cls)
        llm.model, llm.core = model, make_core(model, paced=False)
        return llm

    def generate(self, prompts: Prompt | Many[Prompt], sampling_params: Params = None) -> list[RequestOutput]:
        """One `RequestOutput` per prompt, in order.

        A prompt is a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}; one set of parameters for all or one
        each. Raises `UserError` or `ContextLengthError` before anything runs when one of them cannot be served; a row that fails
        while running ends with finish_reason "error" and leaves the others alone.
        """
        singles = [prompts] if _is_one(prompts) else list(prompts)
        return self._answer([self._read(p) for p in singles], sampling_params)  # type: ignore[arg-type]

    def chat(
        self,
        messages: Many[Message] | Many[Many[Message]],
        sampling_params: Params = None,
        *,
        tools: Many[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """Like `generate`, for one conversation or a list of them, through the model's chat template. Raises `TemplateError`."""
        single = not messages or isinstance(messages[0], Mapping)
        talks: list[Any] = [messages] if single else list(messages)
        render = self.model.text.render
        return self._answer([render(list(t), tools, add_generation_prompt) for t in talks], sampling_params)

    def stream(self, prompt_ids: list[int], params: SamplingParams) -> Iterator[Choice]:
        """The choices of one prompt as they grow: `delta` is the text that is new, `finish` is set at the end."""
        return self._run([self._prepare(0, None, prompt_ids, params)])

    def get_tokenizer(self) -> Any:
        return self.model.text.tokenizer

    def _read(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """(text, ids) of one prompt."""
        if isinstance(prompt, Mapping):
            if "prompt_token_ids" in prompt:
                return prompt.get("prompt"), list(prompt["prompt_token_ids"])
            if "prompt" not in prompt:
                keys = ", ".join(map(str, prompt)) or "nothing"
                raise UserError(f"a prompt mapping needs 'prompt' or 'prompt_token_ids', got {keys}", field="prompt", value=keys)
            prompt = prompt["prompt"]
        if isinstance(prompt, str):
            return prompt, self.model.text.encode(prompt)
        if not isinstance(prompt, Many):
            text = f"a prompt is a text, token ids or a mapping, got {type(prompt).__name__}"
            raise UserError(text, field="prompt", value=type(prompt).__name__)
        ids: Any = prompt
        return None, list(ids)

    def _answer(self, prompts: Many[tuple[str | None, list[int]]], params: Params) -> list[RequestOutput]:
        each = [params or SamplingParams()] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(each) != len(prompts):
            text = f"{len(each)} sampling_params for {len(prompts)} prompts"
            raise UserError(text, field="sampling_params", value=len(each), limit=len(prompts), remedy="give one for all, or one each")
        asked = [self._prepare(i, text, ids, p) for i, ((text, ids), p) in enumerate(zip(prompts, each, strict=True))]
        for _ in self._run(asked):
            pass
        return [one.output() for one in asked]

    def _prepare(self, index: int, text: str | None, ids: list[int], params: SamplingParams) -> RequestState:
        asked = prepare(EngineRequest(str(index), ids, params, text), self.model.limits, self.model.text)
        self.core.state.check_prompt(len(ids))
        return asked

    def _run(self, asked: list[RequestState]) -> Iterator[Choice]:
        """Step until these requests have ended. Whoever stops listening half way aborts them."""
        core = self.core
        try:
            for one in asked:
                core.submit(one)
            while core.busy:
                yield from core.step()
        finally:
            core.close()


def _is_one(prompts: Prompt | Many[Prompt]) -> bool:
    """A text, a mapping, or a non-empty list of whole numbers is one prompt."""
    return isinstance(prompts, str | Mapping) or (len(prompts) > 0 and all(isinstance(p, int) for p in prompts))
