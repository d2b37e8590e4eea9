"""Each line of the table "Worst case of each right" of docs/security.md has tests."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/security.md"

# Tests of all lines: every role against every object, and functions that act for their caller.
ALL = ["test_granted_functions_do_not_harm_or_reveal_a_victim", "test_functions_and_views_without_a_grant_are_refused",
       "test_every_object_is_granted_as_listed", "test_null_is_refused_as_caller"]  # fmt: skip

LINES = {
    "a login only": ["test_nothing_internal_is_for_everybody", "test_every_object_is_granted_as_listed"],
    "produce": ["test_a_producer_reads_nothing", "test_a_producer_can_be_limited_to_topics", "test_every_form_of_enqueue_is_limited",
                "test_a_field_that_decides_comes_once"],
    "capture": ["test_topics_that_are_granted_limit_what_can_be_captured", "test_the_setup_of_captures_is_for_owners",
                "test_a_forged_capture_keeps_no_role_from_altering_its_own_table", "test_progress_of_backfills_does_not_show_those_of_others",
                "test_a_role_that_may_take_a_path_runs_no_code_of_others"],
    "INSERT": ["test_a_view_of_the_log_does_not_show_other_events", "test_topics_of_captures_do_not_allow_enqueue_and_views"],
    "operate": ["test_no_right_lets_the_server_connect_anywhere", "test_operators_do_not_see_endpoints_of_other_owners",
                "test_an_operator_has_no_endpoints_of_others", "test_operations_are_recorded_with_the_role_whose_rights_were_used",
                "test_an_operators_session_runs_no_filter_of_others", "test_events_do_not_show_endpoints_of_other_owners"],
    "fetch": ["test_fetchers_are_known_by_the_role_they_use", "test_the_default_pull_destination_is_granted_by_name", "test_a_late_ack_is_refused"],
    "relay": ["test_only_roles_with_the_right_may_relay", "test_a_figure_out_of_range_refuses_the_report",
              "test_a_relay_removes_no_figures_of_another", "test_rows_of_relays_are_limited",
              "test_a_relay_does_not_guess_the_token_of_a_worker"],
    "monitor": ["test_a_monitor_sees_no_event", "test_monitors_do_not_see_errors_of_endpoints"],
    "USAGE": ["test_roles_with_usage_on_the_wrapper_own_only_their_destinations", "test_a_role_must_not_name_files",
              "test_an_expression_runs_with_the_rights_of_its_owner_only", "test_destinations_count_for_their_owner"],
    "send": ["test_a_sender_sends_and_nothing_else", "test_inbox_and_log_have_the_same_limits"],
    "read": ["test_a_reader_cannot_choose_the_role_of_handlers", "test_a_handler_is_subscribed_for_the_role_whose_code_it_is",
             "test_processors_of_one_role_leave_workers_for_other_roles"],
    "consume": ["test_a_consumer_belongs_to_the_role_that_used_it_first", "test_dead_letters_are_for_the_owner_of_the_consumer_and_operators"],
    "operate (inbox)": ["test_dead_letters_are_for_the_owner_of_the_consumer_and_operators", "test_a_consumer_with_a_new_owner_waits_for_its_confirmation"],
    "monitor (inbox)": ["test_a_monitor_of_the_inbox_sees_no_message"],
    "ownership of a database": ["test_the_owner_of_the_database_cannot_confirm_for_others", "test_an_owner_of_the_inbox_cannot_crash_a_process",
                                "test_a_database_gets_neither_files_nor_the_identity_of_the_machine",
                                "test_outbox_relay_never_works_as_a_powerful_role_in_a_database_of_others",
                                "test_a_superuser_works_in_no_database_of_another_owner", "test_serve_never_works_as_a_superuser"],
    "CREATEDB": ["test_databases_of_one_role_leave_workers_to_others", "test_create_database_does_not_disturb_databases_that_the_role_may_not_copy"],
}  # fmt: skip


def lines() -> list[str]:
    table = PAGE.read_text().split("\n## Worst case of each right\n")[1].split("\n## ")[0]
    first = [row.split("|")[1].strip() for row in re.findall(r"^\|.*\|$", table, re.MULTILINE)][2:]
    return [re.sub(r"`(\w+)`.*", r"\1", name) for name in first]


def test_every_line_has_tests() -> None:
    assert lines() == list(LINES)


@pytest.mark.parametrize("line", LINES)
def test_the_tests_exist(line: str) -> None:
    there = {
        name
        for folder in ("system", "security")
        for file in (TESTS / folder).glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
    }
    assert [name for name in (*ALL, *LINES[line]) if name not in there] == []
