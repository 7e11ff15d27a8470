"""The contract's rows about results and failures, and the tests that check them.

A test is "file::function" below tests/; a function of "*" stands for all of a file.
"""

from __future__ import annotations

from support.contract.suites import (
    BEAMS,
    DEADLINES,
    ELEMENTS,
    FAILURE,
    GENERATION,
    HANDOVER,
    LEASES,
    LOAD,
    MODELS,
    PROCESSES,
    PROMPTS,
    REQUEST_ENDS,
    REQUESTS,
    RESTARTS,
    RESULTS,
    SESSIONS,
    STOPS,
    SURVIVAL,
)

ROWS: dict[str, dict[str, tuple[str, ...]]] = {
    "3. Results": {
        "Get, GetWithTimeout, GetNoWait: tokens unread": (
            f"{RESULTS}::test_calls_with_tokens_unread_return_all_as_one_element",
        ),
        "… nothing unread, running": (f"{RESULTS}::test_calls_with_nothing_unread_on_a_running_sequence",),
        "… nothing unread, ended": (f"{RESULTS}::test_calls_with_nothing_unread_on_an_ended_sequence",),
        "… ended with InternalError": (f"{RESULTS}::test_calls_on_a_failed_sequence_raise_once_nothing_is_unread",),
        "… after release": (
            f"{RESULTS}::test_calls_after_release_raise",
            f"{RESULTS}::test_a_blocked_get_wakes_at_the_release",
        ),
        "a negative timeout is a ValueError": (f"{RESULTS}::test_a_negative_timeout_is_a_value_error",),
        "GenerateStatus is ordered with the tokens; all three loops are right": (
            f"{ELEMENTS}::test_status_is_ordered_with_the_tokens",
            f"{RESULTS}::test_every_loop_gets_everything_once",
            f"{RESULTS}::test_every_loop_ends_on_an_answer_of_one_token",
        ),
        "GeneratedLength": (f"{ELEMENTS}::test_generated_length_counts_what_was_produced",),
        "RequestStatInfo": (f"{ELEMENTS}::test_statistics_are_whole_at_the_end",),
        "unread means unread in the log: one Get for 10,000 tokens": (
            f"{RESULTS}::test_one_get_returns_an_answer_of_ten_thousand_tokens",
        ),
        "several readers, each with a position": (
            f"{RESULTS}::test_several_readers_each_get_all_of_it",
            f"{RESULTS}::test_a_reader_begins_anywhere",
            f"{RESULTS}::test_a_position_that_no_reader_can_be_at_is_out_of_range",
            f"{REQUESTS}::test_a_position_beyond_the_log_is_out_of_range",
        ),
        "exactly once and in order, with a running checksum": (
            f"{ELEMENTS}::test_checksums_run_over_all_ids",
            "unit/client/streaming/test_reader.py::*",
            "unit/client/streaming/test_recovery.py::*",
            "unit/client/streaming/test_waiting_queues.py::*",
        ),
        "the same whatever happens to the connection": (
            f"{SURVIVAL}::test_a_gateway_killed_three_times_costs_no_token",
            f"{SURVIVAL}::test_bc175_core_and_gateway_killed_at_once_cost_no_token",
            f"{LOAD}::test_bc173_sigterm_drains_a_gateway_under_load",
            "unit/client/streaming/test_session_driver.py::test_a_cut_session_resumes_in_another_where_all_were",
        ),
        "text[i] is a function of ids 0 to i and the config alone: every reader sees the same": (
            f"{STOPS}::test_whoever_reads_again_reads_the_same",
            "unit/engine/requests/test_request_reading.py::test_every_reader_sees_the_same_text_at_every_position",
            "unit/engine/requests/starts/test_resume.py::test_text_is_the_same_wherever_it_is_cut",
        ),
        "the ids end with the token that completes a stop; what was computed beyond counts nowhere": (
            f"{STOPS}::test_bc024_what_is_counted_is_what_was_delivered",
            "unit/engine/requests/ends/test_stops.py::test_bc024_tokens_beyond_a_stop_count_nowhere",
        ),
        "an end record with text is an element, one without is none": (
            f"{ELEMENTS}::test_text_held_back_comes_with_the_end",
            "unit/client/api/test_queue_table.py::test_text_held_back_until_the_end_is_an_element_without_ids",
        ),
        "EOS is in the ids and not in the text": (f"{ELEMENTS}::test_eos_is_in_the_ids_and_not_in_the_text",),
        "half characters wait; text held back comes with the end record": (
            f"{ELEMENTS}::test_text_held_back_comes_with_the_end",
        ),
        "a finish on the very first token": (f"{ELEMENTS}::test_bc010_a_finish_on_the_very_first_token",),
        "lists by token have the length of the ids": (f"{ELEMENTS}::test_lists_by_token_have_the_length_of_the_ids",),
        "prefix_cache_len, prefix_len_gpu, prefix_len_cpu": (f"{ELEMENTS}::test_bc081_prefix_reuse_is_told",),
        "the session stream tells who serves it": (f"{ELEMENTS}::test_session_streams_tell_who_serves_them",),
        "one stream carries all sequences: attach, detach, ack; channels are never used twice": (
            f"{SESSIONS}::test_one_stream_reads_many_sequences_to_their_ends",
            f"{SESSIONS}::test_a_reader_begins_where_it_wants",
            "unit/engine/sessions/test_session.py::test_with_0_or_a_number_used_before_breaks_the_rules",
            "unit/engine/sessions/test_session.py::test_counts_as_a_reader_until_detached",
            "unit/engine/sessions/test_session_rules.py::*",
        ),
        "step batches of at most 1 MiB a message": (
            "unit/service/convert/test_convert_session.py::*",
            "unit/engine/sessions/test_session.py::test_of_a_step_are_told_together",
        ),
        "an ack moves a window of 4,096 tokens; end record and status are outside of it": (
            f"{SESSIONS}::test_a_window_holds_back_what_is_not_acknowledged",
            "unit/engine/sessions/test_session_window.py::test_default_is_4096_tokens",
            "unit/engine/sessions/test_session_window.py::test_of_0_lets_statuses_and_the_end_through",
        ),
        "one handle's failure is an item that ends that attach and touches no other": (
            f"{SESSIONS}::test_failures_are_items_and_touch_no_other",
            f"{SESSIONS}::test_a_release_ends_the_channel",
            "unit/gateway/sessions/test_sessions.py::test_each_failing_handle_is_an_item_and_touches_no_other",
            "unit/client/streaming/test_session_failures.py::test_an_unreachable_engine_is_attached_again_elsewhere",
        ),
        "a gateway always drains the engine's stream; what it holds for a slow client is bounded": (
            f"{LOAD}::test_bc172_a_stalled_reader_slows_nobody_and_loses_nothing",
            f"{LOAD}::test_a_stopped_client_holds_up_nobody_and_resumes",
            "unit/gateway/sessions/test_slow_clients.py::*",
        ),
        "load figures go only to sessions that asked and may": (
            "unit/engine/sessions/test_session_life.py::test_is_told_only_to_those_who_asked",
            "unit/gateway/sessions/test_sessions.py::test_options_come_first_and_ask_for_nothing_of_gateways",
        ),
        "a log lives until ReleaseRequest or its lease; acknowledging frees nothing": (
            f"{RESULTS}::test_several_readers_each_get_all_of_it",
            f"{LEASES}::test_a_request_without_readers_is_stopped_and_then_released",
        ),
    },
    "6. Failure": {
        "every code and reason has its exception": ("unit/client/base/test_errors.py::test_the_table_of_failures",),
        "what is tried again, and when; RetryInfo wins": ("unit/client/base/test_retry.py::*",),
        "INVALID_FIELD with every violation": (
            f"{FAILURE}::test_all_violations_are_named_not_only_the_first",
            f"{GENERATION}::test_bc042_values_out_of_range_are_refused_by_name",
        ),
        "NOT_SUPPORTED": (f"{BEAMS}::test_what_does_not_go_with_beams_is_refused",),
        "PROMPT_TOO_LONG": (f"{GENERATION}::test_bc028_a_prompt_of_exactly_the_limit_yields_one_token",),
        "BAD_TEMPLATE": (f"{PROMPTS}::test_bc067_a_template_that_refuses_says_why",),
        "UNKNOWN_MODEL": (f"{FAILURE}::test_an_unknown_model_lists_the_known_ones",),
        "UNKNOWN_REQUEST": (f"{REQUESTS}::test_unknown_handles_are_not_found_at_once",),
        "UNKNOWN_ENGINE": (f"{MODELS}::test_model_verbs_address_engines_by_name",),
        "ENGINE_LOST": (
            f"{REQUESTS}::test_a_handle_of_an_earlier_instance_is_lost",
            f"{PROCESSES}::test_a_killed_engine_is_unreachable_and_then_lost",
            f"{SURVIVAL}::test_a_killed_engine_leaves_what_came_and_then_an_error",
        ),
        "MODEL_EXISTS, REQUEST_ID_REUSED": (
            f"{MODELS}::test_installing_again_with_another_config_is_refused",
            f"{REQUESTS}::test_the_same_key_with_other_content_is_a_conflict",
        ),
        "POSITION_OUT_OF_RANGE": (f"{REQUESTS}::test_a_position_beyond_the_log_is_out_of_range",),
        "WRONG_STATE, MODEL_NOT_RUNNING with the state": (
            f"{MODELS}::test_an_impossible_verb_names_the_state",
            f"{MODELS}::test_a_model_that_does_not_run_takes_no_requests",
        ),
        "BAD_MODEL, OUT_OF_MEMORY": (
            f"{MODELS}::test_a_failed_install_keeps_the_name_and_takes_any_config",
            f"{MODELS}::test_a_failed_start_says_what_to_lower",
        ),
        "QUEUE_FULL with RetryInfo and place in the queue": (
            f"{FAILURE}::test_overload_is_an_answer_with_a_time_to_come_back",
        ),
        "DEADLINE_NOT_MET by measured rates": (
            f"{DEADLINES}::test_a_deadline_that_rates_rule_out_is_refused_at_once",
            "unit/engine/requests/ends/test_forecast.py::*",
        ),
        "RESULTS_FULL: the bytes of one owner's logs are capped": (
            f"{FAILURE}::test_results_that_nobody_releases_are_bounded",
            "unit/engine/results/test_budget.py::*",
        ),
        "DRAINING, ENGINE_UNREACHABLE, NO_ENGINE": (
            f"{PROCESSES}::test_a_draining_engine_takes_no_requests",
            f"{PROCESSES}::test_a_killed_engine_is_unreachable_and_then_lost",
            "unit/gateway/routing/test_placement.py::*",
            "unit/gateway/routing/test_outages.py::*",
        ),
        "hand-over: delivered ids count as generated, checksum and text go on, first times are kept": (
            f"{HANDOVER}::test_a_request_goes_on_with_the_same_tokens_and_text",
            "unit/engine/requests/starts/test_resume.py::*",
        ),
        "hand-over: the log begins at that position, below it OUT_OF_RANGE with the first position": (
            f"{HANDOVER}::test_its_log_begins_where_its_readers_are",
        ),
        "hand-over: a sequence whose end record was delivered is not run again": (
            f"{HANDOVER}::test_a_sequence_whose_end_was_delivered_is_not_run_again",
        ),
        "an error names its request": (f"{FAILURE}::test_errors_name_the_request",),
        "a fault in one request ends that request and no other": (
            f"{REQUEST_ENDS}::test_a_fault_ends_its_request_and_no_other",
        ),
        "DEADLINE_EXCEEDED of the call itself": (
            f"{REQUEST_ENDS}::test_sync_ends_with_its_own_deadline_and_the_request_goes_on",
        ),
        "health": (
            f"{PROCESSES}::test_bc177_health_follows_the_model",
            "unit/gateway/calls/test_engine_facts.py::test_bc177_requests_are_served_while_an_engine_runs_a_model",
            "unit/gateway/calls/test_engine_facts.py::test_bc177_models_are_served_once_an_engine_answers",
        ),
        "core crash: logs stay, a new core goes on with the same tokens, health is NOT_SERVING meanwhile": (
            f"{RESTARTS}::test_bc175_a_killed_core_is_replaced_and_answers_are_whole",
            f"{SURVIVAL}::test_bc175_core_and_gateway_killed_at_once_cost_no_token",
            "unit/engine/cores/test_recovery.py::*",
        ),
        "suspects one by one; a request that was running in two crashes ends with ERROR": (
            f"{RESTARTS}::test_a_request_that_brings_its_core_down_is_found",
            "unit/engine/cores/test_recovery.py::test_poison_is_found_and_no_other_request_suffers",
        ),
        "more than five crashes in ten minutes: FAILED": (
            "unit/engine/cores/test_recovery.py::test_five_crashes_in_ten_minutes_are_borne_and_no_sixth",
        ),
        "a core that answers no ping is killed": (
            f"{RESTARTS}::test_bc175_a_core_that_hangs_is_killed_and_replaced",
            "unit/engine/cores/test_heartbeat.py::*",
        ),
        "MODEL_STARTING: on its way to RUNNING, and waited for": (
            f"{MODELS}::test_b4_a_model_on_its_way_to_running_is_waited_for",
            "e2e/failures/test_returning.py::*",
        ),
        "CORE_RESTARTING": (f"{RESTARTS}::test_bc207_requests_are_refused_until_the_new_core_works",),
        "a core ends with its service": (f"{PROCESSES}::test_a_killed_service_takes_its_core_along",),
        "SIGTERM drains: what runs ends or is handed on, what is new is refused, exit status 0": (
            f"{PROCESSES}::test_bc173_t2_sigterm_drains",
            f"{LOAD}::test_bc173_sigterm_drains_an_engine_under_load",
            f"{LOAD}::test_bc173_sigterm_drains_a_gateway_under_load",
        ),
    },
}
