"""Hostile: rounds of concurrent attacks on a server process, which must not be affected."""

import asyncio
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.attacks import ATTACKS, Target
from tests.fuzz.watching import Watched

__all__ = ["Hostile"]

ROUND_SECONDS = 40.0


class Hostile:
    """`run(rounds)` attacks until all rounds are done or time is up. `problems` has what failed, by round."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.problems: list[str] = []
        self.ends: Counter[str] = Counter()
        """How the streams of attackers ended: an error's code, or the kind of the last message."""
        self.rounds = self.attacks = 0
        self.report = ""

    def run(self, rounds: range, seconds: float = float("inf")) -> None:
        self._until = time.monotonic() + seconds
        with tempfile.TemporaryDirectory() as folder, Watched(Path(folder)) as server:
            asyncio.run(self._run(server, rounds))
            self.problems += server.at_the_end()
            self.report = server.report()

    async def _run(self, server: Watched, rounds: range) -> None:
        for number in rounds:
            if time.monotonic() > self._until:
                break
            draw = random.Random(f"{self.seed}/{number}")
            attacks = [draw.choice(ATTACKS)(draw) for _ in range(draw.choice((1, 1, 2, 4)))]
            self.rounds += 1
            self.attacks += len(attacks)
            server.begin()
            problems = await self._round(attacks, server.target)
            self.ends.update(end for attack in attacks for end in attack.ends)
            problems += await server.after()
            if problems:
                steps = "\n".join(f"    {word}" for attack in attacks for word in attack.words)
                told = "\n".join(f"  {problem}" for problem in problems)
                again = f"make fuzz SEED={self.seed} ONLY={number}"
                self.problems.append(f"round {number} ({again}):\n{told}\n  it was\n{steps}")
            if server.gone:
                break

    async def _round(self, attacks: list, target: Target) -> list[str]:
        try:
            async with asyncio.timeout(ROUND_SECONDS):
                done = await asyncio.gather(*(attack.run(target) for attack in attacks), return_exceptions=True)
        except TimeoutError:
            return [f"the attacks take more than {ROUND_SECONDS:g} s"]
        problems = [problem for each in done if isinstance(each, list) for problem in each]
        # A server may close connections or refuse them.
        failed = [each for each in done if isinstance(each, BaseException) and not isinstance(each, OSError)]
        return problems + [f"the attack itself failed: {each!r}" for each in failed]
