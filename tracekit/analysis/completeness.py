"""What the analysis of a run cannot know, beyond what recording itself noted."""

from tracekit.analysis.loop import What
from tracekit.analysis.people import find_people
from tracekit.analysis.steps import Steps
from tracekit.run.manifest import Missing
from tracekit.run.reader import Run

_RULES_WITH_A_MARK_AT_THE_END = {"explicit": What.MARK, "optimizer": What.OPTIMIZER, "backward": What.BACKWARD}
# By loader: a worker is known by its pid, and a program without workers makes a batch as it asks for it. What a data
# set gets from a loader inside is part of its batch.
_BATCHES_MADE = """
    WITH of_workers AS (SELECT process AS maker, host, pid FROM processes WHERE worker >= 0),
        of_programs AS (SELECT process, host FROM processes WHERE worker < 0),
        got AS (SELECT process, thread, loader, start_ns FROM batches SEMI JOIN of_programs USING (process)),
        started AS (
            SELECT DISTINCT process, loader, maker FROM workers JOIN of_programs USING (process)
            JOIN of_workers USING (host, pid)
        ),
        seen AS (
            SELECT started.process, loader FROM fetches JOIN started ON fetches.process = maker
            UNION ALL
            SELECT got.process, loader FROM (SELECT * FROM fetches SEMI JOIN of_programs USING (process)) AS itself
            ASOF JOIN got ON itself.process = got.process AND itself.thread = got.thread
            AND itself.start_ns >= got.start_ns
        ),
        whole AS (SELECT process, loader, count(*) AS made FROM got GROUP BY ALL)
    SELECT coalesce(sum(made), 0) AS made, coalesce(sum(made - known), 0) AS left_out
    FROM whole JOIN (SELECT process, loader, count(*) AS known FROM seen GROUP BY ALL) USING (process, loader)
    WHERE known < made
"""


def all_missing(run: Run, has_steps: bool, unfinished: list[Missing]) -> list[Missing]:
    """What was not captured, cannot be read or cannot be derived, each with the reason. `unfinished` are the steps that
    no process came to the end of."""
    cut_off = unfinished if _is_cut_short(run) else []
    notes = [*run.missing, *cut_off, *_ranks_not_seen(run), *_batches_left_out(run)]
    said = {word for note in notes for word in note.what.split(", ")}
    if not has_steps and "steps" not in said:
        notes.append(_no_steps(run))
    for table in ("operators", "counters"):
        if table not in said and not _count(run, table):
            notes.append(Missing(table, _why_none(run, table)))
    return list(dict.fromkeys(notes))


def _ranks_not_seen(run: Run) -> list[Missing]:
    """Of each job that was as large, the ranks that nobody recorded."""
    seen: dict[tuple[int, int], set[int]] = {}
    for who in find_people(run):
        if who.rank >= 0 and who.world > 0 and not who.is_loader_worker:
            seen.setdefault((who.attempt, who.world), set()).add(who.rank)
    return [
        Missing(
            f"{world - len(ranks)} of {world} ranks" + (f" of attempt {attempt}" if attempt else ""),
            "nothing was recorded of them: who waited for one of them is told to have been at transfer",
        )
        for (attempt, world), ranks in seen.items()
        if len(ranks) < world
    ]


def _batches_left_out(run: Run) -> list[Missing]:
    """Batches of which nothing was recorded as they were made, of loaders of which some were recorded."""
    made, left_out = run.sql(_BATCHES_MADE).iloc[0].astype(int)
    if not left_out:
        return []
    return [
        Missing(
            f"how {left_out:,} of {made:,} batches were made",
            "not every one is recorded, to keep to the budget, which --overhead raises; they are taken to be like those"
            " around them",
        )
    ]


def _no_steps(run: Run) -> Missing:
    if not _count(run, "processes"):
        return Missing("steps", "no process of the program reached the recording")
    if _has_torch(run):
        return Missing(
            "steps",
            "no optimizer step, backward pass, batch or module call was recorded; a program may mark its own with"
            " tracekit.step()",
        )
    return Missing("steps", "no recorded process imported torch, and none marked steps with tracekit.step()")


def _has_torch(run: Run) -> bool:
    return any(manifest.torch for manifest in run.manifests) or _count(run, "spans") > 0 or _count(run, "batches") > 0


def _why_none(run: Run, table: str) -> str:
    manifest = run.manifest
    if manifest.collectors and table not in manifest.collectors:
        return f"the collector {table} was not asked for"
    if table == "operators" and manifest.profile == "off":
        return "recorded with --profile off"
    if table == "operators" and not _has_torch(run):
        return "no recorded process imported torch"
    if table == "operators":
        return "no profiler window fitted into the run under its overhead budget; --profile full records every step"
    return "none was read while the run lasted"


def _is_cut_short(run: Run) -> bool:
    """Only then has a step under way at the end been cut off; at the end of a program it is a last validation or a
    test."""
    return any(each.ended_ns is None or each.exit_code != 0 or each.exit_signal is not None for each in run.manifests)


def unfinished_steps(steps: Steps) -> list[Missing]:
    """Of processes that got a batch or ran a backward pass after their last complete step: a step under way."""
    notes = []
    for process, thread in steps.thread.items():
        window = steps.window(process)
        if window is None or steps.rule[process] not in _RULES_WITH_A_MARK_AT_THE_END:
            continue
        rows = steps.evidence[process].on(thread)
        after = rows.where(rows.starts >= window[1])
        if len(after.of(What.BACKWARD)) or len(after.of(What.BATCH)):
            notes.append(
                Missing(f"the last step of process {process}", "the program ended in the midst of it; not counted")
            )
    return notes


def _count(run: Run, table: str) -> int:
    return int(run.sql(f'SELECT count(*) AS rows FROM "{table}"')["rows"].iloc[0])
