"""The contract, row by row, and the test that holds each row.

A test is "file::function" below tests/. Rows of this suite run on all three paths; rows of e2e/ and unit/ need real
processes, a clock of their own, or a state that no caller can bring about.
"""

from __future__ import annotations

MODELS = "conformance/test_models.py"
REQUESTS = "conformance/test_requests.py"
RESULTS = "conformance/test_results.py"
GENERATION = "conformance/test_generation.py"
FAILURE = "conformance/test_failure.py"
LEASES = "conformance/test_leases.py"
HANDOVER = "conformance/test_handover.py"
PROCESSES = "e2e/test_processes.py"
START_UP = "e2e/test_start_up.py"
RESTARTS = "e2e/test_core_restarts.py"
REFERENCE = "e2e/test_reference.py"

LATER = (
    "session streams, windows, acknowledgements, HandleError items, load figures",
    "hand-over to another engine, by the client",
    "n and best_of above 1",
    "stop words, bad words, penalties, biases, guided decoding, top and prompt log-probabilities, tensors",
    "API keys, rate limits",
)
"""Parts of the contract that are refused by name, or not reached, until they are built."""

CONTRACT: dict[str, dict[str, tuple[str, ...]]] = {
    "1. Models": {
        "INSTALLING, INITIAL, STARTING, RUNNING, STOPPING, STOPPED, RELEASED": (
            f"{MODELS}::test_a_model_walks_from_installed_to_released",
            f"{MODELS}::test_watch_model_shows_states_in_order_and_ends_with_the_release",
        ),
        "FAILED says why and what to change, keeps its name, and any config may replace it": (
            f"{MODELS}::test_a_failed_install_keeps_the_name_and_any_config_may_replace_it",
            f"{MODELS}::test_a_failed_start_says_what_to_lower",
        ),
        "only RUNNING takes requests": (f"{MODELS}::test_a_model_that_does_not_run_takes_no_requests",),
        "STOPPING lets running requests finish until drain_limit, then DRAINED": (
            f"{MODELS}::test_stop_lets_running_requests_end_until_the_drain_limit",
            f"{MODELS}::test_stop_within_the_drain_limit_ends_nothing_early",
        ),
        "an equal config again changes nothing, another is ALREADY_EXISTS": (
            f"{MODELS}::test_installing_again_with_an_equal_config_changes_nothing",
            f"{MODELS}::test_installing_again_with_another_config_is_refused",
        ),
        "verbs return when their state is reached; no_wait; a repeated call joins": (
            f"{MODELS}::test_no_wait_returns_at_once_and_a_repeated_call_joins",
        ),
        "StartModel during INSTALLING waits": (f"{MODELS}::test_start_waits_for_an_install_in_progress",),
        "a call that is cut leaves the work going": (f"{MODELS}::test_a_verb_that_is_cut_goes_on",),
        "StopModel from STARTING": (f"{MODELS}::test_stop_ends_a_start_in_progress",),
        "a verb in its target state succeeds": (f"{MODELS}::test_verbs_in_their_target_state_succeed",),
        "an impossible verb is FAILED_PRECONDITION and names the state": (
            f"{MODELS}::test_an_impossible_verb_names_the_state",
        ),
        "an unknown name is NOT_FOUND": (f"{MODELS}::test_an_unknown_name_is_not_found",),
        "through a gateway: every engine or those in engine_ids, an answer for each": (
            f"{MODELS}::test_model_verbs_address_engines_by_name",
            f"{MODELS}::test_list_models_names_model_and_engine",
            "unit/gateway/test_models.py::*",
        ),
        "configs and wanted states survive a restart; --model installs and starts": (
            f"{PROCESSES}::test_an_engine_returns_to_its_models_after_a_restart",
            f"{PROCESSES}::test_models_of_the_command_line_are_installed_and_started",
            f"{START_UP}::test_the_command_line_replaces_what_was_kept",
        ),
        "a request that passed the length rules can run to max_length when it runs alone": (
            f"{MODELS}::test_a_request_to_max_length_runs_when_it_runs_alone",
        ),
        "model_path lies inside the configured roots": (f"{PROCESSES}::test_model_roots_bound_what_can_be_installed",),
        "what is not honoured is refused by name, what is out of range too": (
            f"{MODELS}::test_what_is_not_honoured_is_refused_by_name",
            f"{MODELS}::test_a_value_out_of_range_is_refused",
        ),
        "GetModel answers the effective config; the KV pool of a CPU is max_batch × max_length": (
            f"{MODELS}::test_get_model_tells_every_choice_and_size",
        ),
        "InspectModel": (f"{MODELS}::test_inspect_model_describes_without_installing",),
    },
    "2. Requests": {
        "Init, ContextFinished, Generating, then a terminal status": (f"{REQUESTS}::test_statuses_follow_their_order",),
        "GenerateFinished: EOS": (f"{GENERATION}::test_eos_ends_the_request_unless_it_is_told_not_to",),
        "GenerateFinished: MAX_LENGTH": (f"{RESULTS}::test_every_loop_gets_everything_once",),
        "GenerateFinished: STOPPED": (f"{REQUESTS}::test_stop_returns_when_the_end_is_there",),
        "GenerateFinished: NO_TOKEN_LEFT": (f"{GENERATION}::test_nothing_left_to_draw_ends_the_request",),
        "GenerateInterrupted: LEASE_EXPIRED": (
            f"{LEASES}::test_a_request_without_readers_is_stopped_and_then_released",
        ),
        "GenerateInterrupted: DRAINED": (f"{MODELS}::test_stop_lets_running_requests_end_until_the_drain_limit",),
        "InternalError: ERROR": (f"{REQUESTS}::test_a_fault_ends_its_request_and_no_other",),
        "StartRequest returns after validation: handle, config, seed, prompt count, warnings, waiting ahead": (
            f"{REQUESTS}::test_start_answers_what_became_of_the_request",
            f"{REQUESTS}::test_a_seed_is_drawn_and_reported",
            f"{GENERATION}::test_suspicious_fields_are_warnings",
        ),
        "a handle is opaque: engine, instance, 128 random bits": (
            f"{REQUESTS}::test_a_handle_names_engine_and_instance_and_cannot_be_guessed",
        ),
        "the same key and content start one request; a retry joins a start in progress": (
            f"{REQUESTS}::test_the_same_key_and_content_start_one_request",
            f"{REQUESTS}::test_retries_at_once_join_the_start_in_progress",
            f"{REQUESTS}::test_a_refused_start_leaves_its_key_free",
        ),
        "keys are remembered after release": (f"{REQUESTS}::test_a_key_is_remembered_after_the_release",),
        "same key, other content: ALREADY_EXISTS": (f"{REQUESTS}::test_the_same_key_with_other_content_is_a_conflict",),
        "attempt > 0: the gateway asks every engine first": ("unit/gateway/test_placement_again.py::*",),
        "GetRequest by handle or request_id, with wait and position": (
            f"{REQUESTS}::test_get_request_takes_a_handle_or_a_request_id",
            f"{REQUESTS}::test_get_request_with_a_position_waits_for_something_unread",
            f"{REQUESTS}::test_running_out_of_wait_is_no_error",
        ),
        "RESUME preempts invisibly": (
            f"{REQUESTS}::test_preemption_is_invisible",
            f"{REFERENCE}::test_with_forced_preemption",
        ),
        "GenerateInterrupted: INTERRUPTED; RETURN ends a request for lack of memory, its tokens stay readable": (
            f"{REQUESTS}::test_policy_return_ends_what_there_is_no_memory_for",
            "unit/core/test_interrupts.py::*",
        ),
        "dropping GeneratedElements stops nothing, StopRequest does": (
            f"{REQUESTS}::test_dropping_a_reader_stops_nothing",
            f"{REQUESTS}::test_stop_returns_when_the_end_is_there",
            f"{REQUESTS}::test_a_pending_request_can_be_stopped",
        ),
        "stopping an ended request changes nothing": (f"{REQUESTS}::test_stopping_an_ended_request_changes_nothing",),
        "the one-shot Generate stops when dropped": (
            f"{REQUESTS}::test_one_shot_generate_stops_when_dropped",
            f"{PROCESSES}::test_bc086_a_dropped_generate_stops_the_request",
        ),
        "release implies a stop; releasing again succeeds; every other call is NOT_FOUND at once": (
            f"{REQUESTS}::test_bc101_stop_and_release_in_every_order",
            f"{REQUESTS}::test_unknown_handles_are_not_found_at_once",
        ),
        "SyncRequest waits for one or all and blocks nobody else": (
            f"{REQUESTS}::test_sync_waits_for_all_requests_to_a_model",
            f"{REQUESTS}::test_sync_blocks_nobody_else",
            f"{REQUESTS}::test_sync_ends_with_its_own_deadline_and_the_request_goes_on",
        ),
        "lease: running, then stopped with LEASE_EXPIRED; ended, then released": (
            f"{LEASES}::test_a_request_without_readers_is_stopped_and_then_released",
            "unit/engine/test_leases.py::*",
        ),
        "the lease in force is shown, and when it runs out; 0 = for ever, capped by the server": (
            f"{LEASES}::test_the_lease_in_force_is_shown",
            f"{LEASES}::test_a_request_tells_when_its_lease_runs_out",
        ),
        "an unread queue of a living client is never taken away": (
            f"{LEASES}::test_an_unread_queue_of_a_living_client_is_not_taken_away",
        ),
        "ListRequests lists one's own": (f"{REQUESTS}::test_list_requests_newest_first",),
        "a request belongs to its owner": (f"{REQUESTS}::test_requests_belong_to_their_owner",),
    },
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
            f"{RESULTS}::test_status_is_ordered_with_the_tokens",
            f"{RESULTS}::test_every_loop_gets_everything_once",
            f"{RESULTS}::test_every_loop_ends_on_an_answer_of_one_token",
        ),
        "GeneratedLength": (f"{RESULTS}::test_generated_length_counts_what_was_produced",),
        "RequestStatInfo": (f"{RESULTS}::test_statistics_are_whole_at_the_end",),
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
            f"{RESULTS}::test_checksums_run_over_all_ids",
            "unit/client/test_reader.py::*",
            "unit/client/test_recovery.py::*",
        ),
        "EOS is in the ids and not in the text": (f"{RESULTS}::test_eos_is_in_the_ids_and_not_in_the_text",),
        "half characters wait; text held back comes with the end record": (
            f"{RESULTS}::test_text_held_back_comes_with_the_end",
        ),
        "a finish on the very first token": (f"{RESULTS}::test_bc010_a_finish_on_the_very_first_token",),
        "lists by token have the length of the ids": (f"{RESULTS}::test_lists_by_token_have_the_length_of_the_ids",),
        "prefix_cache_len, prefix_len_gpu, prefix_len_cpu": (f"{RESULTS}::test_prefix_reuse_is_told",),
        "the session stream tells who serves it": (f"{RESULTS}::test_session_streams_tell_who_serves_them",),
    },
    "6. Failure": {
        "INVALID_FIELD with every violation": (
            f"{FAILURE}::test_all_violations_are_named_not_only_the_first",
            f"{GENERATION}::test_bc042_values_out_of_range_are_refused_by_name",
        ),
        "NOT_SUPPORTED": (f"{GENERATION}::test_what_is_not_honoured_is_refused_by_name",),
        "PROMPT_TOO_LONG": (f"{GENERATION}::test_bc028_a_prompt_of_exactly_the_limit_yields_one_token",),
        "BAD_TEMPLATE": (f"{GENERATION}::test_bc067_a_template_that_refuses_says_why",),
        "UNKNOWN_MODEL": (f"{FAILURE}::test_an_unknown_model_lists_the_known_ones",),
        "UNKNOWN_REQUEST": (f"{REQUESTS}::test_unknown_handles_are_not_found_at_once",),
        "UNKNOWN_ENGINE": (f"{MODELS}::test_model_verbs_address_engines_by_name",),
        "ENGINE_LOST": (
            f"{REQUESTS}::test_a_handle_of_an_earlier_instance_is_lost",
            f"{PROCESSES}::test_a_killed_engine_is_unreachable_and_then_lost",
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
            f"{MODELS}::test_a_failed_install_keeps_the_name_and_any_config_may_replace_it",
            f"{MODELS}::test_a_failed_start_says_what_to_lower",
        ),
        "QUEUE_FULL with RetryInfo and place in the queue": (
            f"{FAILURE}::test_overload_is_an_answer_with_a_time_to_come_back",
        ),
        "RESULTS_FULL: the bytes of one owner's logs are capped": (
            f"{FAILURE}::test_results_that_nobody_releases_are_bounded",
            "unit/engine/test_result_room.py::*",
        ),
        "DRAINING, ENGINE_UNREACHABLE, NO_ENGINE": (
            f"{PROCESSES}::test_a_draining_engine_takes_no_requests",
            f"{PROCESSES}::test_a_killed_engine_is_unreachable_and_then_lost",
            "unit/gateway/test_placement.py::*",
        ),
        "hand-over: delivered ids count as generated, checksum and text go on, first times are kept": (
            f"{HANDOVER}::test_a_request_goes_on_with_the_same_tokens_and_text",
            "unit/engine/test_resume.py::*",
        ),
        "hand-over: the log begins at that position, below it OUT_OF_RANGE with the first position": (
            f"{HANDOVER}::test_its_log_begins_where_its_readers_are",
        ),
        "hand-over: a sequence whose end record was delivered is not run again": (
            f"{HANDOVER}::test_a_sequence_whose_end_was_delivered_is_not_run_again",
        ),
        "an error names its request": (f"{FAILURE}::test_errors_name_the_request",),
        "a fault in one request ends that request and no other": (
            f"{REQUESTS}::test_a_fault_ends_its_request_and_no_other",
        ),
        "health": (f"{PROCESSES}::test_bc177_health_follows_the_model",),
        "core crash: logs stay, a new core goes on with the same tokens, health is NOT_SERVING meanwhile": (
            f"{RESTARTS}::test_bc175_a_killed_core_is_replaced_and_every_answer_is_whole",
            "unit/engine/test_recovery.py::*",
        ),
        "suspects one by one; a request that was running in two crashes ends with ERROR": (
            f"{RESTARTS}::test_a_request_that_brings_its_core_down_is_found",
            "unit/engine/test_recovery.py::test_poison_is_found_and_no_other_request_suffers",
        ),
        "more than five crashes in ten minutes: FAILED": (
            "unit/engine/test_recovery.py::test_five_crashes_in_ten_minutes_are_borne_and_the_next_is_not",
        ),
        "a core that answers no ping is killed": (
            f"{RESTARTS}::test_bc175_a_core_that_hangs_is_killed_and_replaced",
            "unit/engine/test_heartbeat.py::*",
        ),
        "CORE_RESTARTING": (f"{RESTARTS}::test_bc207_requests_are_refused_until_the_new_core_is_at_work",),
        "SIGTERM drains": (f"{PROCESSES}::test_bc173_sigterm_drains",),
    },
}


def rows() -> list[tuple[str, str, tuple[str, ...]]]:
    """Section, row and tests of everything above."""
    return [(section, row, tests) for section, rows in CONTRACT.items() for row, tests in rows.items()]
