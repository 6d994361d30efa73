"""The program behind `make chaos-transactions`: a short run, and the proof that it would notice a wrong copy."""

from pathlib import Path

import chaos_transactions
import pytest
from brokers import IS_OURS
from chaos_transactions import ROUNDS, Summary
from clusters import Tally


def test_a_run_is_well_only_if_every_copy_is_exact() -> None:
    assert Summary(rounds=1, tally=Tally(acked=9)).is_well
    for wrong in (Tally(lost=1), Tally(twice=1), Tally(out_of_order=1)):
        assert not Summary(tally=wrong).is_well
    assert not Summary(humans=1).is_well
    assert not Summary(complaints=["a traceback"]).is_well


def test_copiers_nodes_links_and_all_together_fail_in_some_round() -> None:
    assert {"kill", "pause", "cut-off", "all-killed", "copier-killed", "copier-paused", "copiers-cut"} <= ROUNDS.keys()


def test_a_copy_in_transactions_is_exact_while_nodes_and_copiers_are_killed(tmp_path: Path) -> None:
    if not IS_OURS:
        pytest.skip("needs nodes of its own")
    said: list[str] = []
    names = ["copier-and-node-killed", "copier-killed"]
    summary = chaos_transactions.run(tmp_path, names, records=20_000, seed=2, say=said.append)
    assert summary.is_well, summary.text()
    assert [it.split(":")[1] for it in said] == [" copier-and-node-killed, ours", " copier-killed, confluent"]
    assert summary.text() == (
        "chaos-transactions: 2 rounds: 40,000 copied, 0 lost, 0 twice, 0 out of order; a human was needed: 0"
    )
