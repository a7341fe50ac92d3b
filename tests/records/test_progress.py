"""Progress reports."""

from eigenscape.records import Progress, Ticker


def test_reports_steps_and_an_estimate() -> None:
    seen: list[Progress] = []
    ticker = Ticker(seen.append, "work", 10, first=4)
    for done in (5, 6):
        ticker.tick(done)
    assert [(p.task, p.done, p.total) for p in seen] == [("work", 5, 10), ("work", 6, 10)]
    last = seen[-1]
    # Two fresh steps took `seconds`, four are left: steps of the earlier run do not count as fast.
    assert last.seconds_left is not None
    assert abs(last.seconds_left - last.seconds / 2 * 4) < 1e-9


def test_no_estimate_before_the_first_fresh_step() -> None:
    seen: list[Progress] = []
    Ticker(seen.append, "work", 10, first=4).tick(4)
    assert seen[0].seconds_left is None


def test_silent_without_a_callback() -> None:
    Ticker(None, "work", 1).tick(1)
