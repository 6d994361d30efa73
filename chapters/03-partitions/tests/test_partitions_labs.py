"""Claims about the labs of chapter 03, and about their simulations."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from labs import lab_keys, lab_linger, pacing
from labs.lab_keys import Written
from labs_run import run_lab

from minibroker.bench import children
from minibroker.bench.context import open_context


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIBROKER_QUICK", "1")


@pytest.mark.parametrize("name", ["grow", "hotkey", "linger"])
def test_a_lab_of_partitions_writes_its_figure_and_its_document_and_cleans_up(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_lab(name, tmp_path, monkeypatch)["chapter"] == "03"


# Shared by both simulations.


def test_a_reader_sees_every_record_once_and_each_partition_in_order() -> None:
    partitions = [[Written(b"%d" % number, n) for n in range(size)] for number, size in enumerate((0, 120, 7, 50))]
    read = list(lab_keys.read_in_turn(partitions))
    assert sorted(read) == sorted(record for records in partitions for record in records)
    for number, records in enumerate(partitions):
        assert [record for record in read if record.key == b"%d" % number] == records


def test_a_record_after_a_later_one_of_its_key_is_out_of_order() -> None:
    records = [Written(b"a", 1), Written(b"a", 3), Written(b"b", 1), Written(b"a", 2), Written(b"a", 4)]
    assert lab_keys.out_of_order(records) == {b"a": 1}
    assert lab_keys.held_to_merge(records) == 1


@given(st.permutations(range(1, 30)))
def test_a_reader_holds_records_back_exactly_where_some_are_out_of_order(sequences: list[int]) -> None:
    records = [Written(b"k", sequence) for sequence in sequences]
    assert bool(lab_keys.held_to_merge(records)) == bool(lab_keys.out_of_order(records))
    assert lab_keys.held_to_merge(records) < len(records)


# The lab `hotkey`.


@pytest.fixture(scope="module")
def spreads() -> dict[str, lab_keys.Spread]:
    keys = lab_keys.hot_traffic(20_000)
    names = [lab_keys.PLAIN, *(lab_keys.salt_name(salts) for salts in lab_keys.SALTS), lab_keys.FALL_THROUGH]
    return {name: lab_keys.spread(name, keys) for name in names}


def test_by_hash_the_hot_key_fills_one_partition_in_order(spreads: dict[str, lab_keys.Spread]) -> None:
    plain_hash = spreads[lab_keys.PLAIN]
    assert plain_hash.max_over_mean > 0.9 * lab_keys.HOT_SHARE * lab_keys.HOT_PARTITIONS
    assert plain_hash.hot_partitions == 1
    assert plain_hash.hot_out_of_order == 0


def test_one_salt_moves_the_hot_key_and_splits_nothing(spreads: dict[str, lab_keys.Spread]) -> None:
    assert spreads["salt 1"].hot_partitions == 1
    assert spreads["salt 1"].hot_out_of_order == 0
    assert spreads["salt 1"].max_over_mean > 0.9 * lab_keys.HOT_SHARE * lab_keys.HOT_PARTITIONS


def test_more_salts_mean_less_load_and_less_order(spreads: dict[str, lab_keys.Spread]) -> None:
    salted = [spreads[lab_keys.salt_name(salts)] for salts in lab_keys.SALTS]
    loads = [each.max_over_mean for each in salted]
    disorder = [each.hot_out_of_order for each in salted]
    assert loads == sorted(loads, reverse=True)
    assert disorder == sorted(disorder)


def test_fall_through_comes_closest_to_an_even_load(spreads: dict[str, lab_keys.Spread]) -> None:
    through = spreads[lab_keys.FALL_THROUGH]
    assert through.max_over_mean == min(each.max_over_mean for each in spreads.values())
    assert through.max_over_mean < 1.5
    assert through.hot_partitions == lab_keys.HOT_PARTITIONS


def test_the_other_keys_keep_their_order_whatever_is_done_about_the_hot_one(
    spreads: dict[str, lab_keys.Spread],
) -> None:
    assert [each.others_out_of_order for each in spreads.values()] == [0] * len(spreads)


def test_the_hotkey_lab_reads_its_figures_in_plain_english() -> None:
    made = [lab_keys.Spread(lab_keys.PLAIN, 10.8, 1, 0, 0, 0)]
    made += [lab_keys.Spread(lab_keys.salt_name(salts), 10.8 / salts, salts, 0.5, 0, 70) for salts in lab_keys.SALTS]
    made += [lab_keys.Spread(lab_keys.FALL_THROUGH, 1.2, 12, 0.92, 0, 3000)]
    by_hash, salt, through, price = lab_keys.hotkey_reading(made)
    assert "10.8 times the mean load" in by_hash
    assert "is in 5 partitions and the fullest has 2.16 times the mean" in salt
    assert "5 of them reach 4.23 of 12 partitions on average" in salt
    assert "1.20 times the mean" in through
    assert "50 % (salt) and 92 % (fall-through)" in price
    assert "up to 70 and 3,000 records. Of all other keys 0 records" in price


# The lab `grow`.


@given(st.integers(min_value=1, max_value=20), st.integers(min_value=1, max_value=20))
def test_the_share_of_moved_keys_in_theory_is_a_count_over_one_period(before: int, after: int) -> None:
    period = before * after
    moved = sum(number % before != number % after for number in range(period))
    assert lab_keys.moved_in_theory(before, after) == pytest.approx(moved / period)


def test_as_many_keys_move_and_lose_their_order_as_theory_says() -> None:
    for after in lab_keys.PARTITIONS_AFTER:
        growth = lab_keys.grow([b"user-%d" % number for number in range(3000)], after)
        assert growth.moved_share == pytest.approx(growth.moved_expected, abs=0.03), f"{after} partitions"
        # A key that was written only before or only after the growth has no order to lose.
        expected = growth.broken_expected
        assert expected - 0.05 < growth.broken_share < expected + 0.03, f"{after} partitions"
        assert growth.broken_behind <= growth.moved, f"{after} partitions"


def test_a_reader_that_had_caught_up_sees_every_key_in_order() -> None:
    growth = lab_keys.grow([b"user-%d" % number for number in range(1000)], 6)
    assert growth.broken_caught_up == 0
    assert growth.broken_behind > 0


def test_four_to_six_partitions_move_two_keys_of_three() -> None:
    assert lab_keys.moved_in_theory(4, 6) == pytest.approx(2 / 3)
    made = [lab_keys.Growth(after, keys=900, moved=600, broken_behind=300, broken_caught_up=0) for after in (6, 8)]
    moved, order, _advice = lab_keys.grow_reading(made)
    assert "600 of 900 keys (66.7 %) get another partition; in theory 66.7 %" in moved
    assert "sees 300 keys out of order (33.3 %; in theory 33.3 %)" in order
    assert "before the growth sees 0" in order


# The lab `linger`.


def lingered(codec: str, linger_ms: int, mb_per_s: float, p99_ms: float) -> lab_linger.Lingered:
    return lab_linger.Lingered(pacing.Setting(linger_ms, codec), mb_per_s, p99_ms / 2, p99_ms, stored_bytes=p99_ms + 10)


def test_the_linger_lab_sends_with_our_own_client_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab_linger, "sender_of", pacing.OwnSender)
    with open_context(directory=tmp_path) as context:
        findings = lab_linger.run_linger(context)
    assert [row[:2] for row in findings.table.rows][:3] == [["none", "0"], ["none", "5"], ["none", "100"]]
    stored = {(row[0], row[1]): float(row[5]) for row in findings.table.rows}
    assert stored["zstd", "100"] < stored["none", "100"]


def test_every_record_of_a_steady_rate_is_timed(tmp_path: Path) -> None:
    with open_context(directory=tmp_path) as context:
        broker = children.serve(context)
        sender = pacing.OwnSender(broker.address, pacing.Setting(0, "none"))
        pacing.send_paced(sender, "orders", [b"a", b"b"], 20, per_second=2000)
        sender.close()
        assert len(sender.latencies_ms) == 20
        assert min(sender.latencies_ms) > 0


def test_the_linger_lab_reads_its_figures_in_plain_english() -> None:
    made = [
        lingered(codec, linger_ms, mb_per_s, p99_ms)
        for codec in lab_linger.CODECS
        for linger_ms, mb_per_s, p99_ms in [(0, 20, 2), (5, 40, 8), (100, 50, 110)]
    ]
    latency, throughput, size = lab_linger.reading(made)
    assert "99 % within 2.00, 8.00 and 110 ms" in latency
    assert "20.0 MB/s without lingering, 40.0 with 5 ms and 50.0 with 100" in throughput
    assert "a factor of 1.25." in throughput
    assert "takes 12.0 bytes on disk with linger 0, 18.0 with 5, 120 with 100" in size
