"""Ask the library about random networks, and compare with the truth.

    python -m tests.fuzz.run --count 1000 --start-seed 0 --seconds 600

Each answer is right, refused, wrong, or raw (an exception that is not ours). Wrong and raw answers,
and refusals of what must be answered, are failures: the exit status is 1, and each has a line with
its seed. `--count 1 --start-seed SEED --verbose` shows one network.
"""

import argparse
import itertools
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch

from tests.fuzz.networks import Case, draw
from tests.fuzz.outcomes import Answer
from tests.fuzz.questions import Examination


def examine(seed: int, num_questions: int = 3) -> tuple[Case, list[Answer]]:
    """Draw a network and ask about it; the default dtype is the user's meanwhile."""
    before = torch.get_default_dtype()
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(seed)
        case = draw(seed)
        torch.set_default_dtype(case.default_dtype)
        try:
            return case, Examination(case, num_questions).run()
        except Exception as error:  # a fault of the fuzzer: it counts as a failure, too
            place = traceback.extract_tb(error.__traceback__)[-1]
            words = f"{type(error).__name__} at {place.name}:{place.lineno}: {error}"
            return case, [Answer("the fuzzer itself", "raw", words)]
        finally:
            torch.set_default_dtype(before)


@dataclass
class Campaign:
    """What came of many networks.

    Attributes:
        networks: How many were right, partly refused, refused, or failed.
        answers: How many answers were right, refused, wrong, raw.
        failures: What is wrong, raw, or refused without need, a line each.
        refusals: How often a healthy network was refused something that may be refused.
    """

    networks: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    refusals: Counter[str] = field(default_factory=Counter)

    def add(self, case: Case, answers: list[Answer]) -> list[str]:
        """Count the answers about one network, and return its failures."""
        self.answers.update(answer.verdict for answer in answers)
        failures = [
            f"seed {case.seed}: {answer.verdict}: {answer.question}: {answer.words} "
            f"[{case.describe()}; {case.defect or 'healthy'}]"
            for answer in answers
            if answer.is_failure
        ]
        self.failures += failures
        verdicts = {answer.verdict for answer in answers}
        outcome = "partly refused" if {"right", "refused"} <= verdicts else max(verdicts)
        self.networks["failed" if failures else outcome] += 1
        for answer in answers:
            if answer.verdict == "refused" and case.is_healthy:
                self.refusals[f"{answer.question.split(' ')[0]}: {answer.words[:80]}"] += 1
        return failures

    def __str__(self) -> str:
        """Say the counts in a line."""
        listed = ", ".join(f"{count} {what}" for what, count in sorted(self.networks.items()))
        given = ", ".join(f"{count} {what}" for what, count in sorted(self.answers.items()))
        return f"{sum(self.networks.values())} networks ({listed}); answers: {given}"


def campaign(
    seeds: Iterable[int],
    seconds: float = float("inf"),
    watch: Callable[[Case, list[Answer], list[str]], None] | None = None,
) -> Campaign:
    """Examine networks until the seeds or the time are spent."""
    found, end = Campaign(), time.monotonic() + seconds
    for seed in seeds:
        if time.monotonic() > end:
            break
        case, answers = examine(seed)
        failures = found.add(case, answers)
        if watch is not None:
            watch(case, answers, failures)
    return found


def main() -> int:
    """Read the command line, run, and say what came."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, help="how many networks; no limit without it")
    parser.add_argument("--start-seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--verbose", action="store_true", help="show every answer")
    parser.add_argument("--every", type=int, default=100, help="counts after so many networks")
    chosen = parser.parse_args()
    start, began = chosen.start_seed, time.monotonic()
    so_far = Campaign()

    def say(case: Case, answers: list[Answer], failures: list[str]) -> None:
        so_far.add(case, answers)
        if chosen.verbose:
            print(case.seed, case.describe(), "--", case.defect or "healthy")
            print(*(f"    {a.verdict}: {a.question}: {a.words}" for a in answers), sep="\n")
        print(*failures, sep="\n", end="\n" * bool(failures), flush=True)
        if (done := case.seed - start + 1) % chosen.every == 0:
            each = (time.monotonic() - began) / done
            print(f"seeds {start} to {case.seed}, {each:.2f} s each: {so_far}", flush=True)

    stop = None if chosen.count is None else start + chosen.count
    seeds = itertools.count(start) if stop is None else range(start, stop)
    found = campaign(seeds, chosen.seconds, say)
    print(found)
    for words, count in found.refusals.most_common(20):
        print(f"{count:6d}  {words}")
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
