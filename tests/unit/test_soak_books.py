"""The books of `make soak`: what ran twice has an excuse, and none covers more than it must."""

from soak import books
from soak.books import Fault, Run, Shape, Task
from support.tables import table

#: 0 -> 1 -> 2, and 3 by itself.
CHAIN = Shape("plain", {0: (), 1: (0,), 2: (1,), 3: ()})
SHUFFLE = Shape("shuffle")


def run(number, at, pod="a", *, round_=1, attempt=1):
    return Run(Task(round_, attempt, number), pod, at, at + 1)


def killed(at, *held, pod="a", round_=1, over=0):
    tasks = frozenset(Task(round_, 1, number) for number in held)
    return Fault("killed", pod, at, over or at + 1, cause="killed", pod=pod, held=tasks)


@table(
    "runs, faults, redone, unexcused",
    each_once=([run(0, 0), run(1, 2)], [], 0, 0),
    nothing_happened=([run(3, 0), run(3, 9)], [], 0, 1),
    was_only_there=([run(3, 0), run(3, 9)], [killed(5, 3)], 1, 0),
    was_not_there=([run(3, 0), run(3, 9)], [killed(5, 2)], 0, 1),
    killed_later=([run(3, 0), run(3, 9)], [killed(15, 3)], 0, 1),
    killed_before_both=([run(3, 20), run(3, 29)], [killed(5, 3)], 0, 1),
    ran_there=([run(3, 5), run(3, 9)], [killed(5)], 1, 0),
    ran_elsewhere=([run(3, 5), run(3, 9)], [killed(5, pod="b")], 0, 1),
    twice_for_one=([run(3, 0), run(3, 6), run(3, 9)], [killed(5, 3, pod="b")], 1, 1),
    with_what_it_is_made_of=([run(0, 0), run(1, 2), run(0, 9), run(1, 10)], [killed(5, 1, pod="b")],
        2, 0),
    made_of_it=([run(0, 0), run(1, 2), run(1, 9)], [killed(5, 0, pod="b")], 0, 1),
    a_shuffle_hangs_together=([run(1, 0, round_=2), run(1, 9, round_=2)],
        [killed(5, 7, pod="b", round_=2)], 1, 0),
    another_graph=([run(1, 0, round_=2), run(1, 9, round_=2)], [killed(5, 1)], 0, 1),
    submitted_again=([run(3, 0), run(3, 9, attempt=2)], [], 1, 0),
    given_up_but_still_running=([run(3, 0, attempt=2), run(3, 9)], [], 1, 0),
    again_for_no_reason=([run(3, 0), run(3, 9, attempt=3)], [], 0, 1),
)  # fmt: skip
def test_what_ran_twice_has_an_excuse(runs, faults, redone, unexcused):
    told = books.audit(runs, faults, {1: CHAIN, 2: SHUFFLE}, {(1, 2): "scheduler killed"})

    assert (redone, unexcused) == (told.redone.total(), len(told.unexcused))
    assert len(runs) == told.runs == told.tasks + redone + unexcused


def test_a_fault_without_a_cause_excuses_nothing():
    deleted = Fault("deleted", "a", 5, 6, pod="a", held=frozenset({Task(1, 1, 3)}))

    told = books.audit([run(3, 0), run(3, 9)], [deleted], {1: CHAIN}, {})
    assert [run(3, 9)] == told.unexcused


def test_notes_are_read_as_they_were_written(tmp_path):
    (tmp_path / "b").write_text("began plain-1-1-0 5.000\nbegan total-2-1-999 6.5\n")
    (tmp_path / "a").write_text("began plain-1-1-0 1.25\nended plain-1-1-0 2.5\n")

    first, again, other = books.read(tmp_path)
    assert Run(Task(1, 1, 0), "a", 1.25, 2.5) == first
    assert Run(Task(1, 1, 0), "b", 5.0) == again
    assert Task(2, 1, 999) == other.task
