"""The keywords of a request, typed. Made by `make fields` from the wire contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from headrace._values.field_values import Lease, LogitsProcessor, Seconds, TokenIdLists


class GenerationFields(TypedDict, total=False):
    """How to generate.

    An unset field means the model's own generation_config.json, else the default named here; an empty list counts as
    unset. Out of range is INVALID_ARGUMENT; nothing is rewritten. Real numbers are doubles, so that the effective
    config echoes exactly what was sent. Lists of stops, bad words and EOS ids have at most 4096 entries each; the
    config without its media has at most 1 MiB.

    Attributes:
        do_sample: Sample tokens; False = take the most likely, whatever the other sampling fields say. Default True.
        temperature: Divides the logits; 0 = the most likely token. At least 0. Default 1.0.
        top_k: Keep the k most likely and ties with the k-th; 0 = all, 1 = the most likely. Default 0.
        top_p: Keep the smallest set whose probability reaches this, ties at its edge included; 1 = off. In (0, 1].
            Default 1.0.
        min_p: Keep tokens at least this share as likely as the most likely; 0 = off. In [0, 1]. Default 0.0.
        seed: Key of the random numbers: same seed, same samples. Default: default_seed of the model, else random;
            reported.
        max_length: Maximum number of tokens, prompt and generated. At least 1. Default: the model's own limit, which is
            also the largest value.
        max_new_tokens: Maximum number of tokens generated; the tighter of the two limits holds, whether max_length is
            the request's or the model's: one that is larger than what max_length leaves after the prompt has a warning.
            At least 1. Default: no limit of its own.
        n: Sequences to return. 1 to 64. Default 1.
        stop_words: Strings that end the request when the generated text contains one; the earliest complete match wins,
            of those that end together the longest. Names of special tokens are those tokens too. At most 65536
            characters in all. At most 4096 entries.
        logprobs: Return the log-probability of every token: the log-softmax of the model's own logits over its ids.
            Default False.
        top_logprobs: Alternatives to return for every token; needs logprobs. 0 to 20. Default 0.
        min_length: Minimum number of tokens, prompt and generated, before EOS or a stop may end the request. Default 0.
        min_new_tokens: Minimum number of tokens generated before EOS or a stop may end the request. Until then EOS ids
            are masked, and stops are generated like anything else. Default 0.
        early_stopping: EOS ends the request; must not equal ignore_eos. Default True.
        ignore_eos: EOS does not end the request, stops still do; must not equal early_stopping. Default False.
        eos_token_id: Ids that end the request. At most 4096 entries. Default: all that the model's generation config,
            its config or its tokenizer names.
        stop_words_ids: Sequences of ids that end the request; a match lies wholly in the generated part. At most 65536
            ids in all. At most 4096 entries.
        stop_token_ids: Single ids that end the request. At most 4096 entries.
        include_stop: Keep the text of the stop that matched, special tokens included. Without it, the text ends before
            the stop, and EOS is not in it either. Default False.
        bad_words_ids: Sequences of ids never generated: the token that would complete one is masked. At most 4096
            entries.
        bad_words: Strings never generated, by the ids that the tokenizer gives them. At most 4096 entries.
        no_repeat_ngram_size: Length of the id sequences that may not occur twice in prompt and generated; 0 = off.
            Default 0.
        repetition_penalty: Divides positive and multiplies negative logits of ids in prompt and generated, once an id;
            1 = off. In (0, 2]. Default 1.0.
        presence_penalty: Subtracted from the logit of every id already generated. In [-2, 2]. Default 0.0.
        frequency_penalty: Subtracted from the logit once for each time the id was generated. In [-2, 2]. Default 0.0.
        suppress_repetition_in_generation: Use presence_penalty and leave repetition_penalty out. Default False.
        best_of: Candidates to generate, of which the best n are returned, best first; at least n. Above n, nothing is
            readable before all ended. Those that ended by themselves come before those that were ended (stopped, late,
            drained, out of memory), and those before failures; then length_penalty's score ranks them. 1 to 64.
            Default: n.
        num_beams: Beams of a beam search, as transformers' generate defines it; 1 = none. Nothing is sampled, and
            do_sample is False. The best n texts are returned, best first; nothing is readable before the search ends,
            and nothing at all where it is ended early. Penalties, bans, biases and logits processors change log-
            probabilities, and what they leave is added up. Each beam counts as a sequence in max_batch and max_waiting.
            Not together with best_of above n, and enable_tensors_from_model_inference. 1 to 64. Default 1.
        beam_stopping: When a beam search ends; needs num_beams above 1. One of "HEURISTIC", "FIRST", "NEVER". Default
            "HEURISTIC".
        length_penalty: Candidates and beams rank by the sum of their log-probabilities divided by the number of tokens
            to this power; another than the default needs best_of above n, or num_beams above 1. That of EOS or a stop
            is included. Candidates rank by the model's own log-probabilities, as logprobs returns them. Default 1.0.
        logit_bias: Added to the logits, by id. Finite; ids below vocab_size.
        allowed_token_ids: Only these ids may be generated. Default: all.
        prompt_logprobs: Log-probabilities of the prompt's tokens with this many alternatives. Reads no prefix cache. 0
            to 20. Default: off.
        response_format: Guided decoding: what the output must match. Form: {"type": "json_object"}, {"type":
            "json_schema", "json_schema": {…}}, {"type": "regex", "regex": "[0-9]+"}, {"type": "choice", "choices":
            ["yes", "no"]}, {"type": "grammar", "text": …, "syntax": "LARK" or "EBNF"} or {"type": "structural_tag",
            "triggers": […], "structures": [{"begin": …, "schema": {…}, "end": …}]}.
        logits_processors: Logits processors of the engine's operator, called in this order. They come after all that
            changes logits above, and before temperature. At most 4096 arguments in all. At most 16 entries.
        lora_name: LoRA adapter to apply, one of those that the model has loaded; empty = none. Keys of the prefix cache
            contain its content. At most 128 bytes. Default "".
        mm_info: Embeddings or images for placeholder ids. Part of the prefix cache's key. At most 4096 entries. Not
            supported so far.
        enable_tensors_from_model_inference: Return input embedding and last hidden state of every token. Default False.
        skip_special_tokens: Leave special tokens out of the text, never out of the ids. See Chat.keep_marks. Default
            True.
        use_prefix_cache: Read and fill the prefix cache. Default True.
        cache_salt: Requests share cached prefixes only with those of the same salt. At most 1024 bytes. Default "".
        use_speculation: Compute drafted ids of this request where the model was installed with speculation. Results are
            the same without. Default True.
        priority: Higher is served first, also before prompts in progress. Of equal ones each has a share of every step,
            so that a short request starts in one of the next steps alongside any long prompt. No request waits for
            ever. Default 0.
        deadline: Time from arrival, in seconds, after which the request ends with DEADLINE, with what it has generated
            by then. One that cannot be met by measured rates is refused (DEADLINE_NOT_MET). Above 0. Default: none.
        interrupt_policy: When memory runs out: continue later (RESUME), or end with what is there (RETURN). One of
            "RESUME", "RETURN". Default "RESUME".
        lease: How long the request outlives its readers. Default: default_lease of the model.
    """

    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    seed: int | None
    max_length: int | None
    max_new_tokens: int | None
    n: int | None
    stop_words: Sequence[str] | None
    logprobs: bool | None
    top_logprobs: int | None
    min_length: int | None
    min_new_tokens: int | None
    early_stopping: bool | None
    ignore_eos: bool | None
    eos_token_id: int | Sequence[int] | None
    stop_words_ids: TokenIdLists | None
    stop_token_ids: int | Sequence[int] | None
    include_stop: bool | None
    bad_words_ids: TokenIdLists | None
    bad_words: Sequence[str] | None
    no_repeat_ngram_size: int | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    suppress_repetition_in_generation: bool | None
    best_of: int | None
    num_beams: int | None
    beam_stopping: Literal["HEURISTIC", "FIRST", "NEVER"] | None
    length_penalty: float | None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None
    allowed_token_ids: int | Sequence[int] | None
    prompt_logprobs: int | None
    response_format: Mapping[str, Any] | None
    logits_processors: Sequence[LogitsProcessor] | None
    lora_name: str | None
    mm_info: Sequence[Mapping[str, Any]] | None
    enable_tensors_from_model_inference: bool | None
    skip_special_tokens: bool | None
    use_prefix_cache: bool | None
    cache_salt: str | None
    use_speculation: bool | None
    priority: int | None
    deadline: Seconds | None
    interrupt_policy: Literal["RESUME", "RETURN"] | None
    lease: Lease | None
