"""What the analysis of a run cannot know, beyond what recording itself noted."""

from tracekit.analysis.loop import What
from tracekit.analysis.people import find_people
from tracekit.analysis.steps import Steps
from tracekit.run.manifest import Missing
from tracekit.run.reader import Run

_RULES_WITH_A_MARK_AT_THE_END = {"explicit": What.MARK, "optimizer": What.OPTIMIZER, "backward": What.BACKWARD}
# A program without workers makes a batch as it asks for it. A loader inside its data set does not count.
_BATCHES_MADE = """
    WITH of_workers AS (SELECT process FROM processes WHERE worker >= 0),
        itself AS (SELECT * FROM fetches ANTI JOIN of_workers USING (process)),
        got AS (SELECT * FROM batches ANTI JOIN of_workers USING (process)),
        itself_of AS (
            SELECT DISTINCT got.process, got.loader FROM itself ASOF JOIN got ON itself.process = got.process
            AND itself.thread = got.thread AND itself.start_ns >= got.start_ns
        )
    SELECT
        (SELECT count(*) FROM got WHERE worker >= 0),
        (SELECT count(*) FROM fetches SEMI JOIN of_workers USING (process)),
        (SELECT count(*) FROM got SEMI JOIN itself_of USING (process, loader) WHERE worker < 0),
        (SELECT count(*) FROM itself)
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
    made_by_workers, seen_of_them, made_itself, seen_itself = run.sql(_BATCHES_MADE).iloc[0].astype(int)
    left_out = made = 0
    for whole, seen in ((made_by_workers, seen_of_them), (made_itself, seen_itself)):
        if 0 < seen < whole:
            left_out, made = left_out + int(whole - seen), made + int(whole)
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
