"""The parts of the simulation, each by itself: clock, processes, network, links, disk, faults."""

from collections.abc import Callable
from random import Random

import pytest
from cases import case

from minibroker.log.interfaces import Files
from minibroker.simulation.chance import stream
from minibroker.simulation.disk import Disk
from minibroker.simulation.faults import COUNT_MAX, COUNT_MIN, Fault, Kind, Storm, draw_faults
from minibroker.simulation.links import Link
from minibroker.simulation.network import Network, Weather
from minibroker.simulation.process import Died, Process
from minibroker.simulation.running import Summary
from minibroker.simulation.scheduler import Scheduler
from minibroker.simulation.shrinking import shrink
from minibroker.simulation.states import States
from minibroker.simulation.trace import Trace, lines


class Stage:
    """A clock, a network of two nodes, and a list of what happened."""

    def __init__(self, weather: Weather | None = None, seed: int = 1) -> None:
        self.scheduler = Scheduler()
        self.trace = Trace(self.scheduler, is_kept=True)
        self.network = Network(self.scheduler, self.trace, stream(seed, "network"), weather or Weather())
        self.a = Process(self.scheduler, self.trace, "a")
        self.b = Process(self.scheduler, self.trace, "b")
        self.a.start()
        self.b.start()
        self.seen: list[object] = []

    def send(self, message: object) -> None:
        self.network.send(self.a, self.b, message, lambda: self.seen.append(message))

    def link(self) -> Link:
        def serve(request: object, reply: Callable[[object], None]) -> None:
            self.seen.append(request)
            reply(f"re {request}")

        return Link(
            self.network,
            self.a,
            self.b,
            serve=serve,
            on_answer=self.seen.append,
            on_broken=lambda: self.seen.append("broken"),
        )


# Scheduler


def test_events_come_in_the_order_of_time_and_then_of_scheduling() -> None:
    scheduler, seen = Scheduler(), []
    scheduler.after(5, lambda: seen.append("late"))
    scheduler.after(1, lambda: seen.append("first"))
    scheduler.after(1, lambda: seen.append("second"))
    scheduler.after(9, lambda: seen.append("never"))
    scheduler.run(5)
    assert (seen, scheduler.now_ms, scheduler.events) == (["first", "second", "late"], 5, 3)


def test_an_action_that_an_event_schedules_happens_in_the_same_run() -> None:
    scheduler, times = Scheduler(), []

    def tick() -> None:
        times.append(scheduler.now_ms)
        scheduler.after(10, tick)

    scheduler.after(0, tick)
    scheduler.run(35)
    assert times == [0, 10, 20, 30]


def test_a_loop_without_a_pause_fails_instead_of_running_for_ever() -> None:
    scheduler = Scheduler()

    def again() -> None:
        scheduler.after(0, again)

    scheduler.after(3, again)
    with pytest.raises(RuntimeError, match="at 3 ms: time stands still"):
        scheduler.run(9)


def test_a_cancelled_timer_does_not_fire_and_the_hook_is_called_after_each_that_does() -> None:
    scheduler, calls = Scheduler(), []
    scheduler.after_event = lambda: calls.append(scheduler.now_ms)
    timer = scheduler.after(1, lambda: calls.append(-1))
    scheduler.after(2, lambda: None)
    timer.cancel()
    scheduler.run(9)
    assert calls == [2]


# Processes


def test_a_killed_process_does_nothing_and_its_timers_die_with_it() -> None:
    stage = Stage()
    stage.a.after(10, lambda: stage.seen.append("timer of the first life"))
    stage.a.kill()
    stage.a.run(lambda: stage.seen.append("dead"))
    stage.a.start()
    stage.a.after(10, lambda: stage.seen.append("timer of the second life"))
    stage.scheduler.run(20)
    assert stage.seen == ["timer of the second life"]


def test_a_paused_process_does_everything_later_and_in_order() -> None:
    stage = Stage()
    stage.b.pause()
    stage.send("one")
    stage.scheduler.run(10)
    stage.send("two")
    stage.scheduler.run(20)
    assert stage.seen == []
    stage.b.resume()
    stage.scheduler.run(30)
    assert stage.seen == ["one", "two"]


def test_a_process_may_die_in_the_middle_of_an_action() -> None:
    stage = Stage()

    def dies() -> None:
        raise Died

    stage.a.run(dies)
    assert not stage.a.is_alive
    assert stage.b.is_alive


def test_an_error_that_a_fault_should_cause_ends_only_the_action() -> None:
    stage = Stage()

    def fail() -> None:
        raise OSError(28, "no space left on device")

    with pytest.raises(OSError, match="no space"):
        stage.a.run(fail)
    stage.a.is_expected = lambda error: isinstance(error, OSError)
    stage.a.run(fail)
    stage.a.run(lambda: stage.seen.append("goes on"))
    assert stage.seen == ["goes on"]
    assert "OSError" in list(lines(stage.trace.entries))[-1]


def test_a_nodes_clock_may_be_wrong() -> None:
    stage = Stage()
    stage.a.clock_error_ms = -500
    stage.scheduler.run(1000)
    assert (stage.a.now_ms, stage.b.now_ms) == (500, 1000)


# Network


def test_without_bad_weather_every_message_arrives_once() -> None:
    stage = Stage()
    for number in range(100):
        stage.send(number)
    stage.scheduler.run(100)
    assert sorted(map(str, stage.seen)) == sorted(map(str, range(100)))
    assert stage.seen != list(range(100)), "each takes its own time, so some overtake others"


def test_bad_weather_drops_duplicates_and_delays_messages() -> None:
    stage = Stage(Weather(drop=0.2, duplicate=0.2, late=0.2))
    for number in range(200):
        stage.send(number)
    stage.scheduler.run(10)
    on_time = len(stage.seen)
    stage.scheduler.run(1000)
    assert len(set(stage.seen)) < 200
    assert len(stage.seen) > len(set(stage.seen))
    assert on_time < len(stage.seen)


def test_a_cut_is_one_way_loses_messages_under_way_and_heals() -> None:
    stage = Stage()
    stage.send("under way")
    heal, heal_again = stage.network.cut("a", "b"), stage.network.cut("a", "b")
    stage.network.send(stage.b, stage.a, "back", lambda: stage.seen.append("back"))
    stage.scheduler.run(100)
    assert stage.seen == ["back"]
    heal()
    assert stage.network.is_cut("a", "b"), "the second cut is still there"
    heal_again()
    stage.send("after")
    stage.scheduler.run(200)
    assert stage.seen == ["back", "after"]


def test_a_slow_link_delays_messages_until_it_is_healed() -> None:
    stage = Stage()
    end = stage.network.slow("a", "b", 500)
    stage.send("slow")
    stage.scheduler.run(400)
    assert stage.seen == []
    end()
    stage.send("fast")
    stage.scheduler.run(600)
    assert stage.seen == ["fast", "slow"]


def test_a_request_is_answered_once_and_only_to_the_life_that_asked() -> None:
    stage = Stage(Weather(duplicate=1.0))

    def ask() -> None:
        stage.network.ask(stage.a, stage.b, "question", lambda reply: reply("answer"), stage.seen.append)

    ask()
    stage.scheduler.run(100)
    assert stage.seen == ["answer"]
    ask()
    stage.a.kill()
    stage.a.start()
    stage.scheduler.run(200)
    assert stage.seen == ["answer"]


def test_a_request_that_may_not_be_served_gets_no_answer() -> None:
    stage = Stage()
    stage.network.admits = lambda source, request: (source.name, request) != ("a", "forged")
    link = stage.link()
    for request in ("forged", "honest"):
        stage.network.ask(stage.a, stage.b, request, lambda reply: reply("answer"), stage.seen.append)
        link.send(request)
    stage.scheduler.run(100)
    assert sorted(map(str, stage.seen)) == ["answer", "honest", "re honest"]


# Links


def test_a_link_keeps_the_order_of_requests_and_answers() -> None:
    for seed in range(10):
        with case(seed):
            stage = Stage(Weather(late=0.5), seed)
            link = stage.link()
            for number in range(20):
                link.send(number)
            stage.scheduler.run(2000)
            assert [it for it in stage.seen if isinstance(it, int)] == list(range(20))
            assert [it for it in stage.seen if isinstance(it, str)] == [f"re {number}" for number in range(20)]


def test_of_a_broken_link_only_the_first_requests_may_arrive() -> None:
    arrived = []
    for seed in range(50):
        stage = Stage(seed=seed)
        link = stage.link()
        for number in range(5):
            link.send(number)
        link.break_off()
        link.send("too late")
        stage.scheduler.run(1000)
        assert stage.seen[0] == "broken"
        assert stage.seen[1:] == list(range(len(stage.seen) - 1))
        arrived.append(len(stage.seen) - 1)
    assert set(arrived) == {0, 1, 2, 3, 4, 5}


def test_after_a_lost_message_nothing_arrives_on_that_link() -> None:
    stage = Stage()
    link = stage.link()
    heal = stage.network.cut("a", "b")
    link.send(1)
    heal()
    link.send(2)
    stage.scheduler.run(100)
    assert stage.seen == []
    stage.link().send(3)
    stage.scheduler.run(200)
    assert stage.seen == [3, "re 3"]


# Disk


def written(disk: Disk) -> bytes:
    file = disk.open("d/a")
    return file.pread(file.size(), 0)


def test_a_kill_leaves_the_page_cache_and_no_open_file() -> None:
    disk = Disk(Random(1))
    file = disk.open("d/a")
    file.pwrite(b"cached", 0)
    disk.kill()
    with pytest.raises(OSError, match="closed"):
        file.pwrite(b"x", 0)
    assert written(disk) == b"cached"


def test_a_power_cut_loses_what_was_not_flushed() -> None:
    left = set()
    for seed in range(30):
        disk = Disk(Random(seed))
        file = disk.open("d/a")
        file.pwrite(b"safe", 0)
        file.fsync()
        disk.fsync_directory("d")
        file.pwrite(b"lost", 4)
        disk.cut_power()
        left.add(written(disk))
    assert all(content.startswith(b"safe") for content in left)
    assert {b"safe", b"safelost"} <= left
    assert any(4 < len(content) < 8 for content in left), "a torn write"


def test_a_process_dies_between_two_changes_of_its_disk() -> None:
    disk = Disk(Random(1))
    file = disk.open("d/a")
    disk.die_after(1)
    file.pwrite(b"one", 0)
    for change in (lambda: file.pwrite(b"two", 3), file.fsync, lambda: disk.unlink("d/a")):
        with pytest.raises(Died):
            change()
    disk.kill()
    assert written(disk) == b"one"


def test_a_disk_can_be_full_or_unable_to_flush_for_a_while() -> None:
    disk = Disk(Random(1))
    file = disk.open("d/a")
    disk.limit(3)
    assert file.pwrite(b"hello", 0) == 3
    with pytest.raises(OSError, match="no space"):
        file.pwrite(b"lo", 3)
    disk.limit(None)
    disk.fail_flushes(True)
    with pytest.raises(OSError, match="input/output"):
        file.fsync()
    disk.fail_flushes(False)
    file.fsync()


def test_the_disk_implements_chapter_01s_files() -> None:
    files: Files = Disk(Random(1))
    files.mkdir("d")
    files.open("d/a").close()
    files.rename("d/a", "d/b")
    assert files.list("d") == ["b"]
    files.unlink("d/b")
    files.rmdir("d")


# Faults

KINDS = tuple(Kind(name, lambda chance: (chance.randrange(3),), duration_ms=(10, 20)) for name in "pqrst")


def test_faults_are_drawn_from_the_seed_and_each_seed_has_its_own_profile() -> None:
    drawn = [draw_faults(KINDS, stream(seed, "faults"), until_ms=1000) for seed in range(50)]
    assert drawn == [draw_faults(KINDS, stream(seed, "faults"), until_ms=1000) for seed in range(50)]
    for faults in drawn:
        assert COUNT_MIN <= len(faults) <= COUNT_MAX
        assert faults == sorted(faults, key=lambda fault: fault.at_ms)
        assert all(0 <= fault.at_ms < 1000 and 10 <= fault.duration_ms <= 20 for fault in faults)
    assert len({frozenset(fault.kind for fault in faults) for faults in drawn}) > 10


def test_a_storm_begins_and_ends_each_fault_in_its_time_and_heals_the_rest() -> None:
    scheduler, seen = Scheduler(), []

    def cause(fault: Fault) -> Callable[[], None]:
        seen.append((scheduler.now_ms, f"{fault.arguments[0]} begins"))
        return lambda: seen.append((scheduler.now_ms, f"{fault.arguments[0]} ends"))

    faults = [Fault(10, "x", (1,), 5), Fault(12, "x", (2,), 100), Fault(14, "y", (3,)), Fault(90, "x", (4,), 5)]
    storm = Storm(scheduler, faults, {"x": cause, "y": lambda _fault: None})
    scheduler.run(50)
    storm.heal()
    scheduler.run(500)
    assert seen == [(10, "1 begins"), (12, "2 begins"), (15, "1 ends"), (50, "2 ends")]


def test_a_fault_is_told_in_one_line() -> None:
    assert str(Fault(1500, "cut", ("a", "b"), 30)) == "1.500 s: cut a b for 30 ms"


def test_shrinking_finds_the_two_faults_that_matter() -> None:
    runs = []

    def is_failing(faults: object) -> bool:
        assert isinstance(faults, list)
        runs.append(faults)
        return {7, 17} <= set(faults)

    assert shrink(range(22), is_failing) == [7, 17]
    assert len(runs) < 40
    needed = len(runs)
    for runs_max in range(needed):
        runs.clear()
        assert {7, 17} <= set(shrink(range(22), is_failing, runs_max=runs_max))
        assert len(runs) == runs_max
    assert shrink(range(22), lambda _faults: True) == []
    assert shrink(range(3), lambda faults: len(faults) == 3) == [0, 1, 2]


# States and trace


def test_states_that_no_run_has_reached_are_named() -> None:
    states, summary = States(["a", "b", "c"]), Summary()
    states.reach("c")
    summary.states.update(states.counts)
    assert summary.missing == ["a", "b"]
    with pytest.raises(AssertionError, match="not declared"):
        states.reach("d")


def test_a_trace_is_read_line_by_line() -> None:
    stage = Stage()
    stage.send("hello")
    stage.scheduler.run(10)
    stage.network.cut("a", "b")
    stage.send("lost")
    stage.b.kill("kill -9")
    told = [line.split(maxsplit=2)[2] for line in lines(stage.trace.entries)]
    assert told[2].split() == ["a", "→", "b", "hello", "#1"]
    assert told[3].split() == ["a", "⇢", "b", "#1", "arrives"]
    assert told[5].split() == ["a", "✕", "b", "#2", "is", "lost:", "the", "link", "is", "cut"]
    assert told[6].split() == ["b", "killed:", "kill", "-9"]
