"""The fields of a request's generation config: ranges, defaults, and what each does, in one table."""

from __future__ import annotations

from headrace_engine.engine.config.field_checks import UINT32, UINT64, Field, table
from headrace_engine.generation_config import InterruptPolicy

MAX_ENTRIES = 4096
"""Entries of a list in a config."""

MAX_SALT = 1024
"""Bytes of a cache_salt: it is kept with the request and with its cached prefixes."""

GENERATION = table(
    Field(
        "do_sample",
        default=True,
        text="draw tokens; false takes the most likely, whatever the other sampling fields say",
    ),
    Field("temperature", 0, default=1.0, text="divides the logits; 0 takes the most likely token"),
    Field(
        "top_k",
        0,
        UINT32,
        default=0,
        text="keep the k most likely tokens and ties with the k-th; 0 keeps all, 1 takes the most likely",
    ),
    Field(
        "top_p",
        0,
        1,
        above_low=True,
        default=1.0,
        text="keep the smallest set whose probability reaches this, ties at its edge included; 1 is off",
    ),
    Field("min_p", 0, 1, default=0.0, text="keep tokens at least this share as likely as the most likely; 0 is off"),
    Field("seed", 0, UINT64, text="same seed, same draws; unset: the model's default_seed, else drawn and reported"),
    Field(
        "max_length",
        1,
        text="most tokens, prompt and generated; unset: the model's own limit, which is also the highest value",
    ),
    Field("max_new_tokens", 1, UINT32, text="most tokens generated; the tighter of both limits holds"),
    Field("n", 1, 64, default=1, text="sequences to return"),
    Field(
        "stop_words",
        most=MAX_ENTRIES,
        text="strings that end the request when its text contains one, the earliest complete match; 65536 characters",
    ),
    Field("logprobs", default=False, text="return the log-probability of every token"),
    Field("top_logprobs", 0, 20, default=0, text="alternatives to return for every token; needs logprobs"),
    Field(
        "min_length",
        0,
        UINT32,
        default=0,
        text="fewest tokens, prompt and generated, before EOS or a stop may end the request",
    ),
    Field(
        "min_new_tokens", 0, UINT32, default=0, text="fewest tokens generated before EOS or a stop may end the request"
    ),
    Field("early_stopping", default=True, text="EOS ends the request; must not equal ignore_eos"),
    Field(
        "ignore_eos", default=False, text="EOS does not end the request, stops still do; must not equal early_stopping"
    ),
    Field("eos_token_id", most=MAX_ENTRIES, text="ids that end the request; none: the model's list"),
    Field(
        "stop_words_ids",
        most=MAX_ENTRIES,
        text="sequences of ids that end the request when generated ids end with one; 65536 ids in all",
    ),
    Field("stop_token_ids", most=MAX_ENTRIES, text="single ids that end the request"),
    Field("include_stop", default=False, text="keep the text of the stop that matched"),
    Field(
        "bad_words_ids",
        most=MAX_ENTRIES,
        text="sequences of ids never generated: the token that would complete one is masked; 65536 ids in all",
    ),
    Field(
        "bad_words",
        most=MAX_ENTRIES,
        text="strings never generated, by the ids that the tokenizer gives them; 65536 characters in all",
    ),
    Field(
        "no_repeat_ngram_size",
        0,
        UINT32,
        default=0,
        text="length of the id sequences that may not occur twice in prompt and generated; 0 is off",
    ),
    Field(
        "repetition_penalty",
        0,
        2,
        above_low=True,
        default=1.0,
        text="divides positive and multiplies negative logits of ids in prompt and generated, once an id",
    ),
    Field(
        "presence_penalty",
        -2,
        2,
        default=0.0,
        text="taken from the logit of every id already generated",
    ),
    Field(
        "frequency_penalty",
        -2,
        2,
        default=0.0,
        text="taken from the logit once for each time the id was generated",
    ),
    Field(
        "suppress_repetition_in_generation",
        default=False,
        text="use presence_penalty and leave repetition_penalty out",
    ),
    Field(
        "best_of",
        1,
        64,
        text="candidates to generate, of which the best n are returned when all have ended, best first; unset: n",
    ),
    Field("num_beams", 1, UINT32, default=1, honoured=(1,), text="beams of a beam search; 1 is none"),
    Field(
        "length_penalty",
        default=1.0,
        text="candidates and beams rank by sum of log-probabilities (the model's own, as logprobs returns them) / "
        "length ^ this; needs best_of above n, or num_beams",
    ),
    Field("logit_bias", text="added to the logits, by id"),
    Field("allowed_token_ids", text="only these ids may be generated; none: all"),
    Field(
        "logits_processors",
        most=16,
        text="logits processors that the engine was started with, called in this order after all of the above; at "
        "most 4096 arguments in all",
    ),
    Field(
        "prompt_logprobs",
        0,
        20,
        text="log-probabilities of the prompt's tokens with so many alternatives; reads no prefix cache",
    ),
    Field("response_format", text="guided decoding: what the output must match"),
    Field("lora_name", default="", honoured=("",), text="adapter to apply; part of the prefix cache's key"),
    Field(
        "mm_info",
        honoured=(),
        most=MAX_ENTRIES,
        text="embeddings or images for placeholder ids; part of the prefix cache's key",
    ),
    Field(
        "enable_tensors_from_model_inference",
        default=False,
        text="return input embedding and last hidden state of every token",
    ),
    Field("skip_special_tokens", default=True, text="leave special tokens out of the text, never out of the ids"),
    Field("use_prefix_cache", default=True, text="read and fill the prefix cache"),
    Field("cache_salt", default="", longest=MAX_SALT, text="share cached prefixes only with requests of the same salt"),
    Field(
        "priority",
        -(2**31),
        2**31 - 1,
        default=0,
        text="higher is served first, also before prompts under way; equal ones share steps, the shortest rest first",
    ),
    Field("deadline", 0, above_low=True, text="seconds from arrival after which the request ends with DEADLINE"),
    Field(
        "interrupt_policy",
        default=InterruptPolicy.RESUME,
        text="when memory runs out: go on later (RESUME) or end with what is there (RETURN)",
    ),
    Field("lease", text="how long the request outlives its readers; unset: the model's default_lease"),
)
