"""The table of what was tried and what became of the rows."""

__all__ = ["as_table", "line_of"]

HEAD = ("fault", "rows", "lost", "doubled", "wrong", "sent again", "moved", "seconds", "")


def line_of(fault, tally):
    cells = (
        fault.__doc__.splitlines()[0], f"{tally.rows:,}", tally.lost, tally.doubled, tally.wrong, tally.replays,
        tally.moves, f"{tally.seconds:.1f}", "; ".join((tally.note, *tally.failures)).strip("; "),
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def as_table(lines):
    return "\n".join((f"| {' | '.join(HEAD)} |", "| --- |" + " ---: |" * 7 + " --- |", *lines))
