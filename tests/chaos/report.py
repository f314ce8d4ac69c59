"""The table of faults and the outcomes of their rows."""

__all__ = ["as_table", "line_of"]

HEAD = ("fault", "rows", "lost", "duplicated", "wrong", "sent again", "moved", "seconds", "notes")


def line_of(fault, tally):
    not_exercised = tally.not_exercised and f"*not exercised*: {tally.not_exercised}"
    cells = (
        fault.__doc__.splitlines()[0], f"{tally.rows:,}", tally.lost, tally.doubled, tally.wrong, tally.replays,
        tally.reconnects, f"{tally.seconds:.1f}", "; ".join(filter(None, (not_exercised, tally.note, *tally.failures))),
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def as_table(lines):
    return "\n".join((f"| {' | '.join(HEAD)} |", "| --- |" + " ---: |" * 7 + " --- |", *lines))
