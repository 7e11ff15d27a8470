"""The contract's rows about generation configs and statistics, and the tests that check them.

A test is "file::function" below tests/; a function of "*" stands for all of a file.
"""

from __future__ import annotations

from support.contract.suites import (
    ADAPTERS,
    AGREEMENT,
    BEAMS,
    CANDIDATES,
    COUNTS,
    DEADLINES,
    DEFAULTS,
    ELEMENTS,
    FACTS,
    FAILURE,
    FIELDS,
    GENERATION,
    GUIDED,
    HANDOVER,
    LOGITS,
    NATIVE,
    PENALTIES,
    PROMPT_LOGPROBS,
    PROMPTS,
    REQUESTS,
    RESOLVED,
    SEVERAL,
    STATE,
    STOPS,
    TEMPLATE,
    TEXT,
    TORCH,
)

ROWS: dict[str, dict[str, tuple[str, ...]]] = {
    "4. Generation config": {
        "unset: the model's own generation_config.json, else the default": (
            f"{RESOLVED}::test_bc049_request_precedes_model_precedes_default",
            f"{RESOLVED}::test_unset_fields_have_the_defaults_of_the_contract",
            f"{FIELDS}::test_defaults_are_those_of_the_contract",
        ),
        "early_stopping, num_beams and length_penalty of the model's files are not taken": (
            f"{DEFAULTS}::test_what_speaks_of_beam_search_is_not_taken",
        ),
        "a value of the model's files above the engine's limit is lowered and shown, one that was sent never": (
            f"{RESOLVED}::test_a_max_length_of_the_model_s_files_is_lowered_and_shown",
            f"{RESOLVED}::test_a_models_max_new_tokens_is_lowered_and_shown",
            f"{RESOLVED}::test_a_models_minimum_gives_way_and_is_shown",
            f"{GENERATION}::test_bc031_too_long_names_prompt_request_and_limit",
        ),
        "an empty list is an unset one, a zero is not": (
            f"{FIELDS}::test_empty_lists_are_unset",
            f"{GENERATION}::test_explicit_zeros_reach_the_effective_config",
        ),
        "out of range is INVALID_ARGUMENT naming field, value and range": (
            f"{FIELDS}::test_bc042_a_value_out_of_range_is_refused_with_the_range",
            f"{GENERATION}::test_bc042_values_out_of_range_are_refused_by_name",
        ),
        "unknown fields of the wire are INVALID_ARGUMENT": (
            "unit/service/convert/test_convert_prompt.py::test_unknown_fields_at_any_depth_are_refused_by_number",
            "unit/service/server/test_server_refusals.py::test_unknown_fields_are_refused",
        ),
        "nothing is rewritten or ignored silently; what is suspicious is a warning": (
            f"{COUNTS}::test_bc027_every_field_that_is_sent_is_what_holds",
            f"{COUNTS}::test_bc027_no_field_that_is_honoured_is_left_out_here",
            f"{GENERATION}::test_suspicious_fields_are_warnings",
            "unit/engine/config/test_warnings.py::*",
        ),
        "do_sample false, temperature 0, top_k 1: greedy, whatever the other fields say": (
            f"{GENERATION}::test_greedy_in_all_its_spellings",
            f"{RESOLVED}::test_greedy_whatever_the_other_fields_say",
        ),
        "temperature": (
            f"{TORCH}::test_bc051_temperature_comes_before_top_p",
            f"{NATIVE}::test_bc051_temperature_comes_before_top_p",
            f"{LOGITS}::test_bc040_tiny_temperature_and_top_p_equal_greedy",
        ),
        "top_k: 0 = all; ties with the k-th are kept": (
            f"{TORCH}::test_ties_with_the_kth_are_kept",
            f"{NATIVE}::test_of_equal_logits_cuts_keep_all_and_arg_max_the_first",
            f"{NATIVE}::test_draws_of_the_whole_vocabulary_follow_the_distribution",
        ),
        "top_p: the smallest set that reaches it, ties at the edge kept; 1.0 = off, exactly": (
            f"{TORCH}::test_ties_at_the_edge_of_top_p_are_kept",
            f"{TORCH}::test_top_p_1_keeps_ids_whose_mass_is_lost_in_rounding",
            f"{NATIVE}::test_draws_what_the_reference_draws",
        ),
        "min_p": (
            f"{TORCH}::test_min_p_is_relative_to_the_most_likely",
            f"{TORCH}::test_min_p_1_keeps_ties_of_the_most_likely",
        ),
        "seed: the request's, else the config's, else drawn and reported": (
            f"{REQUESTS}::test_a_seed_is_drawn_and_reported",
            f"{RESOLVED}::test_of_the_runtime_config_is_for_requests_without_one",
        ),
        "max_length counts the prompt, max_new_tokens does not, the tighter holds": (
            f"{GENERATION}::test_bc032_lengths_count_as_they_say",
        ),
        "before both minima are reached neither EOS ids nor stop words end a request": (
            f"{GENERATION}::test_eos_is_masked_before_the_minimum",
            f"{STOPS}::test_bc019_stops_before_the_minimum_end_nothing",
            f"{RESOLVED}::test_bc032_min_length_counts_the_prompt_and_both_must_hold",
            f"{LOGITS}::test_minimum_lengths_mask_eos_in_every_draw",
        ),
        "early_stopping, ignore_eos: a contradiction is an error; stop words end a request all the same": (
            f"{GENERATION}::test_eos_ends_the_request_unless_it_is_told_not_to",
            f"{GENERATION}::test_contradictory_eos_switches_are_an_error",
            f"{STOPS}::test_bc017_stop_ids_stop_on_those_ids_only",
        ),
        "eos_token_id: any of them ends the request": (
            f"{GENERATION}::test_bc020_every_id_of_an_eos_list_ends_the_request",
        ),
        "stop_words_ids, stop_token_ids: the generated ids end with one": (
            f"{STOPS}::test_bc017_stop_ids_stop_on_those_ids_only",
            f"{STOPS}::test_stop_ids_may_not_begin_in_the_prompt",
            "unit/engine/requests/ends/test_stops.py::*",
        ),
        "stop_words: the earliest complete match wins, text before it is whole, special tokens as text": (
            f"{STOPS}::test_bc013_a_stop_word_of_several_tokens",
            f"{STOPS}::test_bc014_a_stop_word_inside_a_merged_token",
            f"{STOPS}::test_bc016_no_element_shows_a_part_of_a_stop_word",
            f"{STOPS}::test_bc022_a_special_token_given_as_text",
            f"{STOPS}::test_bc035_text_that_turns_out_to_be_no_stop_is_delivered",
            "unit/engine/text/test_stopping.py::*",
        ),
        "include_stop": (
            f"{STOPS}::test_bc013_a_stop_word_of_several_tokens",
            f"{STOPS}::test_eos_is_in_the_text_only_where_it_is_asked_for",
        ),
        "bad_words_ids, bad_words": (
            f"{LOGITS}::test_bad_words_are_never_completed",
            f"{LOGITS}::test_bad_words_are_spelled_by_the_tokenizer",
        ),
        "no_repeat_ngram_size: over prompt and generated ids": (
            f"{LOGITS}::test_bc048_no_ngram_comes_twice",
            f"{LOGITS}::test_bc048_where_every_id_was_there_the_request_ends",
            f"{STATE}::test_bc048_ngrams_of_prompt_and_generated_come_once",
        ),
        "repetition_penalty, presence_penalty, frequency_penalty": (
            f"{LOGITS}::test_bc046_each_penalty_has_its_effect",
            f"{STATE}::test_bc044_presence_penalty_leaves_the_prompt_alone",
            f"{STATE}::test_frequency_penalty_counts_what_was_generated",
            "native/device/test_logit_changes.py::test_every_logit_is_what_transformers_makes_of_it",
            "unit/backends/torch/test_torch_logits.py::test_every_logit_is_what_transformers_makes_of_it",
            f"{PENALTIES}::test_greedy_answers_are_those_of_transformers",
        ),
        "suppress_repetition_in_generation": (f"{LOGITS}::test_suppressed_repetition_uses_the_presence_penalty_alone",),
        "n: sequences share one prefill": (
            f"{SEVERAL}::test_they_share_one_prompt",
            f"{SEVERAL}::test_bc038_each_choice_has_its_own_tokens",
            f"{SEVERAL}::test_bc038_a_seed_fixes_each_sequence_whatever_n_is",
        ),
        "best_of: candidates share one prefill; nothing is readable before all have ended": (
            f"{CANDIDATES}::test_they_share_one_prompt",
            f"{CANDIDATES}::test_nothing_is_readable_before_all_have_ended",
        ),
        "length_penalty: sum of log-probabilities ÷ length^p; ≠ 1.0 where nothing is ranked is an error": (
            f"{CANDIDATES}::test_the_best_of_the_candidates_come_in_order_of_their_rank",
            f"{CANDIDATES}::test_the_model_s_own_log_probabilities_rank",
            f"{CANDIDATES}::test_what_ranks_nothing_is_refused",
        ),
        "num_beams, beam_stopping: beam search as transformers defines it; what it does not take is refused": (
            f"{BEAMS}::test_texts_are_those_of_transformers",
            f"{BEAMS}::test_nothing_is_readable_before_the_search_ends",
            f"{BEAMS}::test_a_search_that_is_stopped_has_no_text",
            f"{BEAMS}::test_what_does_not_go_with_beams_is_refused",
            "unit/backends/test_beams.py::*",
            "unit/core/scheduling/test_searches.py::*",
        ),
        "lora_name: unknown = NOT_FOUND; part of the prefix key": (
            f"{ADAPTERS}::test_bc136_an_unknown_name_is_refused",
            f"{ADAPTERS}::test_bc072_adapters_share_no_prefix",
        ),
        "mm_info is refused by name until it is built": (f"{PROMPTS}::test_bc075_media_is_refused_and_never_ignored",),
        "logit_bias, allowed_token_ids": (
            f"{LOGITS}::test_bias_and_allowed_ids",
            f"{LOGITS}::test_ids_that_may_be_drawn_are_drawn_by_their_probability",
        ),
        "logprobs, top_logprobs: of the model's own logits; the second without the first is an error": (
            f"{LOGITS}::test_logprobs_are_the_models_own_whatever_is_changed",
            f"{LOGITS}::test_bc054_exactly_as_many_alternatives_as_were_asked_for",
            f"{LOGITS}::test_bc056_logprobs_without_alternatives",
            f"{LOGITS}::test_bc061_more_alternatives_than_20_are_refused",
            "unit/engine/config/test_logit_rules.py::test_bc056_top_logprobs_need_logprobs",
        ),
        "prompt_logprobs: the model's own, read from any place, first in Generate; reads no prefix cache": (
            f"{PROMPT_LOGPROBS}::test_a_prompt_is_told_as_the_same_tokens_generated_were",
            f"{PROMPT_LOGPROBS}::test_a_prompt_is_read_from_any_place",
            f"{PROMPT_LOGPROBS}::test_generate_tells_the_prompt_before_its_first_token",
            f"{PROMPT_LOGPROBS}::test_the_prefix_cache_is_not_read_and_is_filled",
            f"{PROMPT_LOGPROBS}::test_a_hand_over_tells_the_prompt_again",
            "unit/engine/results/test_prompt_log.py::test_pieces_are_at_most_a_mebibyte_and_follow_each_other",
            "e2e/answers/test_reference.py::test_what_is_told_of_prompts_and_tokens",
        ),
        "response_format: followed, or refused with INVALID_ARGUMENT": (
            f"{GUIDED}::test_json_that_satisfies_a_schema",
            f"{GUIDED}::test_expressions_and_grammars",
            f"{GUIDED}::test_bc143_what_cannot_be_compiled_is_refused",
            "unit/guided/test_guided_texts.py::*",
            "unit/guided/test_guided_limits.py::*",
            "unit/guided/test_guided_cost.py::*",
            "unit/guided/test_guided_schemas.py::*",
            "unit/engine/formats/test_formats.py::*",
            "unit/engine/formats/test_random_formats.py::*",
        ),
        "enable_tensors_from_model_inference: raw little-endian bytes, shape, dtype": (
            f"{PROMPT_LOGPROBS}::test_vectors_come_with_every_token",
            f"{PROMPT_LOGPROBS}::test_vectors_take_room_of_the_results",
            "unit/backends/test_extra_outputs.py::test_prompt_and_vectors_are_those_of_transformers",
        ),
        "skip_special_tokens concerns text alone": (
            "unit/engine/cores/test_outputs.py::test_a_special_token_is_in_the_ids_and_not_in_the_text",
            f"{STOPS}::test_eos_is_in_the_text_only_where_it_is_asked_for",
        ),
        "use_prefix_cache, cache_salt": (
            f"{ELEMENTS}::test_bc081_prefix_reuse_is_told",
            "unit/core/steps/test_generation.py::test_salts_keep_requests_apart",
            "unit/core/steps/test_generation.py::test_an_opted_out_sequence_neither_reads_nor_fills_the_cache",
        ),
        "priority: higher first; equal: first come": (
            f"{DEADLINES}::test_priority_lets_a_request_overtake",
            "unit/core/scheduling/test_fairness.py::test_first_come_first_served_and_higher_priority_before",
        ),
        "deadline from arrival: ends with DEADLINE; refused at once where it cannot be met": (
            f"{DEADLINES}::test_a_deadline_ends_a_request_with_what_it_has",
            f"{DEADLINES}::test_a_deadline_that_rates_rule_out_is_refused_at_once",
            "unit/engine/requests/ends/test_deadlines.py::test_it_runs_from_the_arrival_and_not_from_the_first_step",
        ),
        "text: as it is, with the special tokens that the tokenizer adds, unless told otherwise": (
            f"{TEXT}::test_is_tokenised_as_it_is",
            f"{TEXT}::test_special_tokens_are_added_as_asked",
            f"{PROMPTS}::test_tokenize_and_detokenize_are_each_others_inverse",
        ),
        "chat: messages, add_generation_prompt, continue_final_message, variables, tools": (
            f"{PROMPTS}::test_a_chat_is_rendered_by_the_models_template",
            f"{TEMPLATE}::test_the_opening_of_the_answer_is_rendered_by_default",
            f"{TEMPLATE}::test_a_final_message_is_continued_alike",
            f"{TEMPLATE}::test_variables_are_json_values",
            f"{TEMPLATE}::test_tools_and_calls_are_rendered_alike",
        ),
        "a template's failure is INVALID_ARGUMENT with its message": (
            f"{PROMPTS}::test_bc067_a_template_that_refuses_says_why",
        ),
        "the order of logit work": (
            "native/device/test_logit_changes.py::test_every_logit_is_what_transformers_makes_of_it",
            "unit/core/guides/test_guided.py::test_allowed_ids_apply_together_with_a_grammar",
            f"{TORCH}::test_bc051_temperature_comes_before_top_p",
            f"{TORCH}::test_top_k_comes_before_top_p",
            f"{TORCH}::test_cuts_count_only_ids_that_are_not_masked",
        ),
        "randomness: Philox, the score, the lowest id of an arg-max": (
            "unit/backends/torch/test_torch_philox.py::test_published_answers",
            f"{TORCH}::test_the_score_is_the_logit_with_the_noise_of_philox",
            f"{TORCH}::test_greedy_takes_the_lowest_id_of_equal_logits",
            f"{TORCH}::test_seed_position_and_index_each_change_the_draw",
        ),
        "a seed gives the same tokens alone, in any batch, after preemption, on another engine": (
            f"{GENERATION}::test_a_seed_gives_the_same_tokens_alone_and_in_company",
            f"{LOGITS}::test_bc036_neighbours_without_a_seed_change_nothing",
            "unit/core/steps/test_random_configs.py::test_each_request_is_what_it_is_alone",
            "e2e/answers/test_random_requests.py::test_each_request_is_what_it_is_alone",
            f"{HANDOVER}::test_a_request_goes_on_with_the_same_tokens_and_text",
        ),
        "two backends draw the same on the same logits but within rounding, and how often is counted": (
            f"{AGREEMENT}::test_draws_differ_within_rounding_alone_and_seldom",
            f"{NATIVE}::test_thousands_of_draws_are_those_of_the_reference",
        ),
        "the same tokens: identical, or up to a place where rounding decides": (
            "unit/test_same_tokens.py::*",
            "e2e/answers/test_same_prompt.py::*",
        ),
        "prompt rules": (
            f"{PROMPTS}::test_bc063_an_empty_prompt_is_refused",
            f"{PROMPTS}::test_bc064_ids_outside_the_vocabulary_are_refused",
            f"{GENERATION}::test_bc028_a_prompt_of_exactly_the_limit_yields_one_token",
            f"{RESOLVED}::test_a_minimum_that_cannot_be_reached_is_refused",
        ),
    },
    "5. Statistics": {
        "RequestStatInfo belongs to (handle, index)": (f"{SEVERAL}::test_each_choice_has_statistics_of_its_own",),
        "while running it is asked for, after the end it is the end record's": (
            f"{FACTS}::test_is_told_while_running_and_final_in_the_end_record",
            "unit/client/api/test_queue_table.py::test_statistics_are_asked_while_running_and_final_after",
        ),
        "every figure of RequestStatInfo": (
            f"{ELEMENTS}::test_statistics_are_whole_at_the_end",
            f"{ELEMENTS}::test_bc081_prefix_reuse_is_told",
            "unit/engine/results/test_statistics.py::test_context_rate_counts_computed_tokens_only",
            "unit/engine/results/test_statistics.py::test_gaps_between_tokens",
            "unit/engine/cores/test_outputs.py::test_preemptions_are_counted",
            "unit/engine/requests/starts/test_resume.py::test_hand_overs_are_counted_from_what_was_known",
        ),
        "figures of the engine, by model": (
            f"{FAILURE}::test_statistics_of_the_engine_balance",
            f"{FACTS}::test_follows_the_steps",
            f"{FACTS}::test_before_the_first_step_the_whole_pool_is_free",
        ),
        "rates are means of the last ten seconds, step times their percentiles": (
            "unit/engine/results/test_statistics.py::test_rates_are_means_of_the_last_ten_seconds",
            "unit/engine/results/test_statistics.py::test_old_steps_are_forgotten_and_counters_stay",
        ),
        "WatchEngineStat": ("unit/service/server/test_server.py::test_statistics_are_watched_again_and_again",),
        "a new instance_id: the service restarted; a new core_epoch: the core did, logs remain": (
            f"{FACTS}::test_each_start_has_an_instance_of_its_own",
            f"{FACTS}::test_counters_survive_a_core_restart_and_gauges_do_not",
            "e2e/failures/test_core_restarts.py::test_bc175_a_killed_core_is_replaced_and_answers_are_whole",
        ),
    },
}
