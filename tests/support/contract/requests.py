"""The contract's rows about models and requests, and the tests that check them.

A test is "file::function" below tests/; a function of "*" stands for all of a file.
"""

from __future__ import annotations

from support.contract.suites import (
    CANDIDATES,
    DEADLINES,
    GENERATION,
    LEASES,
    LOAD,
    MODEL_CONFIGS,
    MODELS,
    PROCESSES,
    REFERENCE,
    REQUEST_ENDS,
    REQUESTS,
    RESULTS,
    SEVERAL,
    START_UP,
    STOPS,
    SURVIVAL,
)

ROWS: dict[str, dict[str, tuple[str, ...]]] = {
    "1. Models": {
        "INSTALLING, INITIAL, STARTING, RUNNING, STOPPING, STOPPED, RELEASED": (
            f"{MODELS}::test_a_model_walks_from_installed_to_released",
            f"{MODELS}::test_watch_model_shows_states_in_order_until_the_release",
        ),
        "FAILED says why and what to change, keeps its name, and any config may replace it": (
            f"{MODELS}::test_a_failed_install_keeps_the_name_and_takes_any_config",
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
            "unit/gateway/calls/test_models.py::*",
        ),
        "configs and wanted states survive a restart; --model installs and starts": (
            f"{PROCESSES}::test_an_engine_returns_to_its_models_after_a_restart",
            f"{PROCESSES}::test_models_of_the_command_line_are_installed_and_started",
            f"{START_UP}::test_the_command_line_replaces_what_was_kept",
        ),
        "progress: phase, bytes done, bytes in all": (
            "unit/core/process/test_warmup.py::test_progress_is_told_in_order_and_ready_comes_last",
            "unit/engine/models/test_model_verbs.py::test_progress_is_shown_until_it_is_done",
        ),
        "through a gateway the model takes requests when one engine is RUNNING": (
            "unit/gateway/routing/test_placement.py::test_an_engine_that_cannot_take_it_is_left_out",
        ),
        "the warm-up takes the largest batch and the longest request; serving takes no more": (
            "unit/core/process/test_warmup.py::test_the_warm_up_reaches_every_limit_and_breaks_none",
        ),
        "memory_ratio; the size of the KV pool": ("unit/backends/test_kv_size.py::*",),
        "a request that passed the length rules can run to max_length when it runs alone": (
            f"{MODEL_CONFIGS}::test_a_request_to_max_length_runs_when_it_runs_alone",
        ),
        "model_path lies inside the configured roots": (f"{PROCESSES}::test_model_roots_bound_what_can_be_installed",),
        "what is not honoured is refused by name, what is out of range too": (
            f"{MODEL_CONFIGS}::test_what_is_not_honoured_is_refused_by_name",
            f"{MODEL_CONFIGS}::test_a_value_out_of_range_is_refused",
        ),
        "GetModel answers the effective config; the KV pool of a CPU is max_batch × max_length": (
            f"{MODELS}::test_get_model_tells_every_choice_and_size",
        ),
        "InspectModel": (f"{MODELS}::test_inspect_model_describes_without_installing",),
        "LoadAdapter, UnloadAdapter, ListAdapters": (
            "conformance/models/test_loading_adapters.py::*",
            "unit/engine/models/test_adapter_verbs.py::*",
            "unit/gateway/calls/test_adapter_calls.py::*",
            "e2e/failures/test_adapter_restarts.py::test_a_new_core_has_the_loaded_adapter",
        ),
    },
    "2. Requests": {
        "Init, ContextFinished, Generating, then a terminal status": (f"{REQUESTS}::test_statuses_follow_their_order",),
        "GenerateFinished: EOS": (f"{GENERATION}::test_eos_ends_the_request_unless_it_is_told_not_to",),
        "GenerateFinished: STOP_WORD, with the list, the place in it and the text": (
            f"{STOPS}::test_bc013_a_stop_word_of_several_tokens",
            f"{STOPS}::test_bc017_stop_ids_stop_on_those_ids_only",
        ),
        "GenerateFinished: MAX_LENGTH": (f"{RESULTS}::test_every_loop_gets_everything_once",),
        "GenerateFinished: STOPPED": (f"{REQUEST_ENDS}::test_stop_returns_when_the_end_is_there",),
        "GenerateFinished: DEADLINE": (
            f"{DEADLINES}::test_a_deadline_ends_a_request_with_what_it_has",
            "unit/engine/requests/ends/test_deadlines.py::*",
        ),
        "GenerateFinished: NO_TOKEN_LEFT": (f"{GENERATION}::test_nothing_left_to_draw_ends_the_request",),
        "GenerateInterrupted: LEASE_EXPIRED": (
            f"{LEASES}::test_a_request_without_readers_is_stopped_and_then_released",
        ),
        "GenerateInterrupted: RESPONSE_FORMAT_LIMIT": (
            "unit/core/guides/test_guided.py::test_a_text_beyond_the_parsers_limits_ends_alone",
        ),
        "GenerateInterrupted: DRAINED": (
            f"{MODELS}::test_stop_lets_running_requests_end_until_the_drain_limit",
            f"{LOAD}::test_an_engine_ends_what_outlasts_its_drain_limit",
        ),
        "InternalError: ENGINE_LOST": (f"{SURVIVAL}::test_a_killed_engine_leaves_what_came_and_then_an_error",),
        "InternalError: ERROR": (f"{REQUEST_ENDS}::test_a_fault_ends_its_request_and_no_other",),
        "StartRequest returns after validation: handle, config, seed, prompt count, warnings, waiting ahead": (
            f"{REQUESTS}::test_start_answers_what_became_of_the_request",
            f"{REQUESTS}::test_a_seed_is_drawn_and_reported",
            f"{GENERATION}::test_suspicious_fields_are_warnings",
        ),
        "a request has n sequences, each with position, status and end": (
            f"{SEVERAL}::test_bc038_each_choice_has_its_own_tokens",
            "unit/engine/requests/test_several.py::test_each_has_its_own_tokens_and_its_own_end",
        ),
        "best_of above n: nothing is readable before all candidates ended, then the best by length_penalty's score": (
            f"{CANDIDATES}::test_nothing_is_readable_before_all_have_ended",
            f"{CANDIDATES}::test_the_best_of_the_candidates_come_in_order_of_their_rank",
        ),
        "best_of above n starts again in a hand-over": (
            "unit/engine/requests/test_candidates.py::test_candidates_start_again_and_readers_go_on",
        ),
        "a handle is opaque: engine, instance, 128 random bits": (
            f"{REQUESTS}::test_a_handle_names_engine_and_instance_and_is_unguessable",
        ),
        "the same key and content start one request; a retry joins a start in progress": (
            f"{REQUESTS}::test_the_same_key_and_content_start_one_request",
            f"{REQUESTS}::test_retries_at_once_join_the_start_in_progress",
            f"{REQUESTS}::test_a_refused_start_leaves_its_key_free",
        ),
        "the same through another gateway: a retry whose first answer was lost": (
            f"{LOAD}::test_a_start_with_a_lost_answer_is_found_by_another_gateway",
            "unit/client/base/test_retry.py::test_a_lost_start_is_sent_again_with_the_next_attempt",
        ),
        "keys are remembered until 10 minutes after release": (
            f"{REQUESTS}::test_a_key_is_remembered_after_the_release",
            "unit/engine/requests/starts/test_start_keys.py::test_a_key_is_remembered_until_ten_minutes_after_release",
        ),
        "an empty request_id is drawn, and that start is not idempotent": (
            "unit/engine/requests/starts/test_start_keys.py::test_an_empty_id_starts_anew_each_time",
        ),
        "of several hand-overs the highest answers GetRequest": (
            "unit/engine/requests/test_registry.py::test_of_several_hand_overs_the_highest_answers",
            "unit/gateway/calls/test_requests_by_key.py::test_the_highest_handover_answers",
        ),
        "same key, other content: ALREADY_EXISTS": (f"{REQUESTS}::test_the_same_key_with_other_content_is_a_conflict",),
        "attempt > 0: the gateway asks every engine first": ("unit/gateway/routing/test_placement_again.py::*",),
        "GetRequest by handle or request_id, with wait and position": (
            f"{REQUESTS}::test_get_request_takes_a_handle_or_a_request_id",
            f"{REQUESTS}::test_get_request_with_a_position_waits_for_something_unread",
            f"{REQUESTS}::test_running_out_of_wait_is_no_error",
        ),
        "RESUME preempts invisibly": (
            f"{REQUEST_ENDS}::test_preemption_is_invisible",
            f"{REFERENCE}::test_with_forced_preemption",
        ),
        "GenerateInterrupted: INTERRUPTED; RETURN ends a request for lack of memory, its tokens stay readable": (
            f"{REQUEST_ENDS}::test_policy_return_ends_what_there_is_no_memory_for",
            "unit/core/scheduling/test_interrupts.py::*",
        ),
        "dropping GeneratedElements stops nothing, StopRequest does": (
            f"{REQUEST_ENDS}::test_dropping_a_reader_stops_nothing",
            f"{REQUEST_ENDS}::test_stop_returns_when_the_end_is_there",
            f"{REQUEST_ENDS}::test_a_pending_request_can_be_stopped",
        ),
        "stopping an ended request changes nothing": (
            f"{REQUEST_ENDS}::test_stopping_an_ended_request_changes_nothing",
        ),
        "the one-shot Generate stops when dropped": (
            f"{REQUEST_ENDS}::test_one_shot_generate_stops_when_dropped",
            f"{PROCESSES}::test_bc086_a_dropped_generate_stops_the_request",
        ),
        "release implies a stop; releasing again succeeds; every other call is NOT_FOUND at once": (
            f"{REQUEST_ENDS}::test_bc101_stop_and_release_in_every_order",
            f"{REQUESTS}::test_unknown_handles_are_not_found_at_once",
        ),
        "SyncRequest waits for one or all and blocks nobody else": (
            f"{REQUEST_ENDS}::test_sync_waits_for_all_requests_to_a_model",
            f"{REQUEST_ENDS}::test_sync_blocks_nobody_else",
            f"{REQUEST_ENDS}::test_sync_ends_with_its_own_deadline_and_the_request_goes_on",
        ),
        "lease: running, then stopped with LEASE_EXPIRED; ended, then released": (
            f"{LEASES}::test_a_request_without_readers_is_stopped_and_then_released",
            "unit/engine/requests/leases/test_leases.py::*",
            "unit/engine/requests/leases/test_lease_timers.py::*",
        ),
        "the lease in force is shown, and when it runs out; 0 = for ever, capped by the server": (
            f"{LEASES}::test_the_lease_in_force_is_shown",
            f"{LEASES}::test_a_request_tells_when_its_lease_runs_out",
        ),
        "an unread queue of a living client is never taken away": (
            f"{LEASES}::test_an_unread_queue_of_a_living_client_is_not_taken_away",
            f"{LOAD}::test_an_unread_queue_of_a_living_client_outlives_every_lease",
            "unit/client/api/test_client_ends.py::test_a_started_request_stays_attached_without_its_queue",
        ),
        "a client that died leaks nothing": (
            f"{SURVIVAL}::test_requests_of_a_killed_client_are_stopped_by_their_lease",
            "unit/gateway/sessions/test_session_ends.py::test_a_silent_client",
            "unit/gateway/sessions/test_session_ends.py::test_a_lost_connection",
            "unit/engine/sessions/test_session_life.py::test_silence_ends_it",
        ),
        "the client's context managers stop and release": (
            "unit/client/api/test_client_ends.py::test_leaving_the_client_releases_what_it_started_alone",
            "unit/client/api/test_client_ends.py::test_generate_left_early_is_released",
        ),
        "ListRequests lists one's own": (f"{REQUESTS}::test_list_requests_newest_first",),
        "a request belongs to its owner; the gateway sends it with each call and attach": (
            f"{REQUESTS}::test_requests_belong_to_their_owner",
            "unit/gateway/calls/test_requests.py::test_f14_b7_a_call_that_names_an_owner_is_refused",
        ),
    },
}
