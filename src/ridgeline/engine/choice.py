"""One continuation of a prompt, as its requester sees it: ids, text, log-probabilities, and why it ended.

Knows how the next token is drawn and what ends it. Refuses to know blocks, order of execution and backends.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from ridgeline.engine.masks import Bans
from ridgeline.errors import InternalError
from ridgeline.sampling.guide import Forcing, GuideState, Mask
from ridgeline.sampling.plan import SampleRow, TopLogprobs
from ridgeline.scheduler.state import Sequence
from ridgeline.text.stream import TextStream
from ridgeline.types import CompletionOutput, FinishReason, RequestTimes, SamplingParams


class Choice:
    """Mutable state of choice `index` of one request. `sequence` is what the scheduler moves; its tokens are the penalties' counts.

    token_ids: all generated ids; delta, new_ids: what the last step added, which had guessed `drafts`; drafted, accepted: guesses of all
    steps, and those that came true; times are the request's.
    stop_ids and stop strings end it; while a grammar confines it, only that says where it ends (`eos_ids`: the model's way to say so).
    """

    __slots__ = (
        "_bans", "_bias", "_counts", "_masks", "accepted", "delta", "drafted", "drafts", "eos_ids", "finish", "index", "last_at",
        "logprob_sum", "logprobs", "new_ids", "new_logprobs",
        "out", "params", "request_id", "seed", "sequence", "stop_ids", "stop_reason", "times", "token_ids",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        index: int,
        params: SamplingParams,
        seed: int,
        stop_ids: frozenset[int],
        eos_ids: frozenset[int],
        bans: Bans,
        out: TextStream | None,
        times: RequestTimes,
    ) -> None:
        self.request_id, self.index, self.params, self.seed = request_id, index, params, seed
        self.stop_ids, self.eos_ids, self.out, self.times = stop_ids, eos_ids, out, times
        self.sequence: Sequence | None = None
        self.token_ids: list[int] = []
        self.delta = ""
        self.new_ids: list[int] = []
        self.new_logprobs: list[dict[int, float]] | None = None
        self.logprobs: list[dict[int, float]] = []
        self.logprob_sum = 0.0
        self.last_at = 0.0
        self.finish: FinishReason | None = None
        self.stop_reason: int | str | None = None
        self.drafts: list[int] = []
        self.drafted = self.accepted = 0
        self._masks: tuple[int, list[Mask | None]] = (-1, [])  # after so many tokens, before each draft and after the last
        self._bans = bans
        self._counts = params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self._bias = None
        if params.logit_bias:
            ids, values = zip(*params.logit_bias, strict=True)
            self._bias = np.array(ids, np.int32), np.array(values, np.float32)

    @property
    def text(self) -> str:
        return self.out.text if self.out is not None else ""

    @property
    def grammar(self) -> GuideState | None:
        """What binds its next token, if anything does."""
        return self._bans.grammar

    @property
    def prompt_len(self) -> int:
        return self._moved().prompt_len

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache gave."""
        report = self._moved().report
        return 0 if report is None else report.tokens

    def _moved(self) -> Sequence:
        if self.sequence is None:
            raise InternalError("a choice was used before its request was submitted")
        return self.sequence

    def look_ahead(self, drafts: list[int]) -> list[int]:
        """As many of the drafts as its grammar would let pass and as do not end it: the end is drawn, never guessed."""
        ends = self.stop_ids if self._bans.grammar is None else self.eos_ids | self.stop_ids
        stop = next((i for i, token in enumerate(drafts) if token in ends), len(drafts))
        drafts = drafts[:stop]
        if self._bans.grammar is not None and drafts:
            masks = self._bans.ahead(self.token_ids, drafts)
            self._masks = len(self.token_ids), masks
            drafts = drafts[: max(0, len(masks) - 1)]
        return drafts

    def forced(self) -> list[int]:
        """What its grammar leaves no choice about, in the likeliest spelling; an error of the grammar's is left to the draw."""
        grammar = self._bans.grammar
        with suppress(Exception):
            return grammar.forced() if isinstance(grammar, Forcing) else []
        return []

    def _mask(self, ahead: int) -> Mask | None:
        at, masks = self._masks
        if at == len(self.token_ids) and ahead < len(masks):
            return masks[ahead]
        return self._bans.next(self.token_ids + self._moved().drafts[:ahead].tolist() if ahead else self.token_ids)

    def row(self, row: int, ahead: int = 0) -> SampleRow:
        """The draw of its next token, after `ahead` drafts, from row `row` of the logits. The arrays are views: nothing is copied here."""
        p, seq = self.params, self._moved()
        seen = seq.ahead(ahead) if self._counts else None
        bias = self._bias
        return SampleRow(
            row=row, temperature=p.temperature, top_k=p.top_k if p.top_k > 0 else 0, top_p=p.top_p, min_p=p.min_p,
            repetition_penalty=p.repetition_penalty, presence_penalty=p.presence_penalty, frequency_penalty=p.frequency_penalty,
            seed=self.seed, choice=self.index, position=seq.known + ahead,
            prompt_ids=None if seen is None else seen[: seq.prompt_len], output_ids=None if seen is None else seen[seq.prompt_len :],
            bias_ids=None if bias is None else bias[0], bias_values=None if bias is None else bias[1],
            allowed=self._mask(ahead), logprobs=p.logprobs,
        )  # fmt: skip

    def accept(self, token: int, logprob: float, top: TopLogprobs | None, now: float, *, more: bool = False) -> None:
        """A drawn token: append it and decide whether it was the last. `now`: seconds, for the times; more: of the same step."""
        times = self.times
        times.first_token = times.first_token or now
        times.last_token = self.last_at = now
        self.token_ids.append(token)
        before = self.delta if more else ""
        self.drafts = []
        self.new_ids = [*self.new_ids, token] if more else [token]
        if top is not None:
            listed = {token: logprob, **dict(zip(top.ids.tolist(), top.values.tolist(), strict=True))}
            self.logprobs.append(listed)
            self.new_logprobs = [*(self.new_logprobs or []), listed] if more else [listed]
            self.logprob_sum += logprob
        made, least, seq = len(self.token_ids), self.params.min_tokens, self._moved()
        confined = self._bans.confined
        complete = self._bans.accept(token)
        if (complete and token in self.eos_ids) if confined else (token in self.stop_ids and made > least):
            self.delta = before
            self._end("stop", token if token in self.params.stop_token_ids else None)
            return
        self.delta = before if self.out is None else before + self.out.push(token, may_stop=made >= least and not confined)
        if self.out is not None and self.out.matched is not None:
            self._end("stop", self.out.matched)
        elif complete:
            self._end("stop", None)
        elif seq.prompt_len + made >= seq.cap:
            self._end("length", None)

    def verified(self, drafts: list[int], accepted: int) -> None:
        """What became of a step's drafts: the first `accepted` of them were drawn."""
        self.drafts = drafts
        self.drafted += len(drafts)
        self.accepted += accepted

    def close(self, reason: FinishReason, why: str | None = None, *, keep: bool = False) -> None:
        """It ended without a token: aborted, failed, or out of room. Text that was held back is given out, except for errors.

        keep: the step gave tokens before."""
        if not keep:
            self.delta, self.new_ids, self.new_logprobs = "", [], None
        if reason == "error":
            self.finish, self.stop_reason = reason, why
        else:
            self._end(reason, why)

    def _end(self, reason: FinishReason, stop_reason: int | str | None) -> None:
        out = self.out
        if out is not None and out.matched is None:
            self.delta += out.finish()
            if out.matched is not None:  # completed by the last, broken character
                reason, stop_reason = "stop", out.matched
        self.finish, self.stop_reason = reason, stop_reason

    def output(self) -> CompletionOutput:
        """All of it so far."""
        wanted = self.params.logprobs is not None
        return CompletionOutput(
            index=self.index, text=self.text, token_ids=list(self.token_ids), finish_reason=self.finish, stop_reason=self.stop_reason,
            cumulative_logprob=self.logprob_sum if wanted else None, logprobs=list(self.logprobs) if wanted else None,
            drafted_tokens=self.drafted, accepted_tokens=self.accepted,
        )  # fmt: skip

    def news(self) -> CompletionOutput:
        """What the last step added. The joined texts and ids of all news are those of the final `output`."""
        wanted = self.params.logprobs is not None
        return CompletionOutput(
            index=self.index, text=self.delta, token_ids=self.new_ids, finish_reason=self.finish, stop_reason=self.stop_reason,
            cumulative_logprob=self.logprob_sum if wanted else None, logprobs=(self.new_logprobs or []) if wanted else None,
            drafted_tokens=self.drafted, accepted_tokens=self.accepted,
        )  # fmt: skip
