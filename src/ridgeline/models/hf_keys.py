"""Keys that every Hugging Face `config.json` of a decoder shares. Knows no family."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from ridgeline.errors import FileFormatError
from ridgeline.formats.names import HUGGING_FACE_DERIVED
from ridgeline.models.decoder import Sizes, model_length
from ridgeline.models.facts import Facts
from ridgeline.models.scaling import hf_reach
from ridgeline.models.store import Store

LOG = logging.getLogger(__name__)
SILU = ("silu", "swish")
MAX_LAYERS = 1024
# Keys that change no number of the forward pass at inference.
HARMLESS = (
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "_name_or_path", "_model_name_or_path", "use_cache",
    "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id", "cls_token_id",
    "decoder_start_token_id", "attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "dropout", "pretraining_tp",
    "is_llama_config", "auto_map", "unsloth_fixed", "unsloth_version", "cache_implementation", "_attn_implementation",
    "attn_implementation", "_attn_implementation_autoset", "output_attentions", "output_hidden_states", "return_dict", "torchscript",
    "use_bfloat16", "id2label", "label2id", "problem_type", "finetuning_task", "prefix", "task_specific_params", "tokenizer_class",
    "is_decoder", "is_encoder_decoder", "tf_legacy_loss", "pruned_heads", "tie_encoder_decoder", "add_cross_attention",
    "cross_attention_hidden_size", "chunk_size_feed_forward", "max_length", "min_length", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty",
    "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
    "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty",
    "suppress_tokens", "begin_suppress_tokens", "transformers.js_config",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """What all families read alike."""

    name: str
    sizes: Sizes
    layers: int
    heads: int
    kv_heads: int
    ffn_dim: int


def read_shape(
    facts: Facts, store: Store, max_model_len: int | None, acts: Collection[str], act_key: str = "hidden_act", head_dim: int | None = None
) -> Shape:
    """Sizes of the config. acts: spellings of the one activation that the family has; head_dim: the family's default, else dim / heads."""
    facts.ignore(HARMLESS)
    store.ignore([n for n in store.tensors if n.endswith(HUGGING_FACE_DERIVED)])
    facts.word(act_key, acts, next(iter(acts)))
    dim, heads = facts.whole("hidden_size"), facts.whole("num_attention_heads")
    if head_dim is None and not facts.has("head_dim"):
        head_dim, rest = divmod(dim, heads)
        if rest:
            raise facts.bad("num_attention_heads", heads, f"a divisor of hidden_size ({dim}) when head_dim is absent")
    head_dim = facts.whole("head_dim", head_dim)
    context = facts.whole("max_position_embeddings")
    sizes = Sizes(
        vocab=facts.whole("vocab_size"), dim=dim, head_dim=head_dim, v_dim=head_dim, eps=facts.real("rms_norm_eps", 1e-6),
        context_len=context, max_model_len=model_length(max_model_len, context, hf_reach(facts, context)),
    )  # fmt: skip
    name = facts.values.get("model_type")
    return Shape(
        name if isinstance(name, str) else "model", sizes, facts.whole("num_hidden_layers", high=MAX_LAYERS), heads,
        facts.whole("num_key_value_heads", heads), facts.whole("intermediate_size"),
    )  # fmt: skip


def tied(facts: Facts, store: Store, default: bool) -> bool:
    """Whether the head is the embedding. Untied without a head is refused. Tied with another head in the file: the file's head is
    used, with a warning, as `transformers` 5 does; an equal copy is left unread, so that memory holds it once."""
    answer = facts.flag("tie_word_embeddings", default)
    if not answer and not store.has("lm_head.weight"):
        raise FileFormatError(
            f"{store.origin}: tensor lm_head.weight is missing and tie_word_embeddings is false", field="lm_head.weight",
            remedy="the checkpoint is incomplete, or its config should say tie_word_embeddings: true",
        )  # fmt: skip
    if answer and store.has("lm_head.weight") and store.has("model.embed_tokens.weight"):
        head, embed = store.tensors["lm_head.weight"], store.tensors["model.embed_tokens.weight"]
        if head.encoding != embed.encoding or not np.array_equal(head.data, embed.data):
            LOG.warning("%s: tie_word_embeddings is true but lm_head.weight differs from the embedding: the head is used", store.origin)
            return False
    if answer:
        store.ignore(("lm_head.weight",))
    return answer


def windows(facts: Facts, layers: int, slides: Callable[[int], bool], switch: str | None = None) -> tuple[int | None, ...]:
    """The window of each layer, from `layer_types` or else the family's rule `slides`. `switch` is the key that turns windows on at all."""
    kinds = facts.get("layer_types")
    window = facts.whole("sliding_window") if facts.has("sliding_window") else None
    facts.ignore(("sliding_window",))
    allowed = facts.flag(switch, False) if switch is not None else True
    on = window is not None and allowed
    if kinds is None:
        return tuple(window if on and slides(i) else None for i in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers or any(k not in ("full_attention", "sliding_attention") for k in kinds):
        raise facts.bad("layer_types", kinds, f"a list of {layers} times full_attention or sliding_attention")
    if "sliding_attention" in kinds and not on:
        raise facts.bad("sliding_window", window, "a window, because layer_types has sliding_attention")
    return tuple(window if k == "sliding_attention" else None for k in kinds)
