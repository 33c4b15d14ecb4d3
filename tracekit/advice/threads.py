"""Rules for CPU threads: fewer where more want to run than may, and the waiting for a CPU shows it."""

from typing import cast

from tracekit.advice.thread_settings import MUCH_WAITING
from tracekit.analysis.report_schema import Advice, Gain, Report, Setting
from tracekit.analysis.threads import Crowding
from tracekit.analysis.words import counted, shell_line
from tracekit.run.reader import Run

SETTING = "threads.intra_op"


def fewer_threads(run: Run, report: Report) -> Advice:
    """Recommend as many intra-op threads as the CPUs hold, on the host that is the worst off.

    Recommended is floor((CPUs - whole CPUs kept busy by loader workers) / main loops), with the CPUs that affinity and
    quota allow and no more than there are physical cores: threads that share a core share its vector units. Only when
    more threads want to run than may, and time is evidently lost to that (`Crowding.lost`): threads that never waited
    cost nothing.
    """
    if report.exploration is not None:
        return Advice([], "")  # it was measured
    crowded = [crowd for crowd in report.crowding if crowd.is_oversubscribed() and crowd.lost()]
    settings = [setting for crowd in crowded if (setting := _recommend(report, crowd)) is not None]
    if settings:
        best = min(settings, key=lambda setting: cast(int, setting.recommended))
        return Advice([best], "Fewer threads fit the CPUs better; record with the settings and compare.")
    return Advice([], _why_not(report))


def _recommend(report: Report, crowd: Crowding) -> Setting | None:
    cpus = min(crowd.cpus, crowd.physical_cores or crowd.cpus)
    recommended = max(1, (cpus - int(crowd.worker_cpus)) // crowd.processes)
    if crowd.intra_op is None or recommended >= crowd.intra_op:
        return None
    lost = crowd.lost()
    return Setting(
        name=SETTING,
        current=crowd.intra_op,
        recommended=recommended,
        # Of the time lost to waiting, fewer threads win back between nothing and all: time slices that are only shared
        # out cost nothing, those for which a whole team waits at a barrier cost all.
        gain=Gain(low=0.0, expected=round(lost / 2, 4), high=round(lost, 4)),
        basis="rule",
        effect="numerics",  # a sum over another number of threads is added up in another order
        why=f"{_demand(crowd)}; {_seen(crowd)}. The gain is guessed: between none of the {lost:.0%} so lost and all.",
        apply=shell_line(["tracekit", "apply", f"{report.path}/settings.toml", "--", *report.command]),
    )


def _demand(crowd: Crowding) -> str:
    processes = f" in each of {crowd.processes} processes" if crowd.processes > 1 else ""
    loops = counted(cast(int, crowd.intra_op), "thread") + processes
    workers = f" and loader workers that keep {crowd.worker_cpus:.1f} CPUs busy" if int(crowd.worker_cpus) else ""
    quota = f" (quota {crowd.quota:g})" if crowd.quota is not None else ""
    return f"{loops}{workers} want to run on {crowd.cpus} CPUs{quota} of {crowd.host}"


def _seen(crowd: Crowding) -> str:
    seen = []
    if crowd.runnable is not None:
        seen.append(f"on average {crowd.runnable:.1f} are running or ready to run")
    if crowd.waiting is not None and crowd.waiting > crowd.recording:
        seen.append(f"they wait for a CPU {crowd.waiting:.0%} of the time more than before the loop")
    if crowd.throttled is not None and crowd.throttled > crowd.recording:
        seen.append(f"the quota halts them {crowd.throttled:.0%} of the time")
    return ", ".join(seen)


def _why_not(report: Report) -> str:
    if not report.steps.count:
        return "Nothing is recommended: without steps there is nothing to make faster."
    if not any(crowd.threads is not None for crowd in report.crowding):
        return "No thread count is recommended: the recorded process did not tell how many threads it uses."
    crowded = [crowd for crowd in report.crowding if crowd.is_oversubscribed()]
    if not crowded:
        return (
            f"No thread count is recommended: the threads fit the CPUs{_others(report)}. Whether others are faster was"
            " not measured: `tracekit record --explore threads` does."
        )
    if any(crowd.lost() for crowd in crowded):
        return "No thread count is recommended: one thread in each process is the least; start fewer processes."
    if all(crowd.runnable is None and crowd.throttled is None for crowd in crowded):
        return "No thread count is recommended: there are more threads than CPUs, but no counter tells if they wait."
    return (
        "No thread count is recommended: there are more threads than CPUs, but seldom so many at once, and they wait no"
        " longer than the program did before its loop."
    )


def _others(report: Report) -> str:
    """That others are in the way, where the threads fit and yet wait for longer than any advice is worth."""
    delays = [use.run_delay_share for use in report.threads if use.run_delay_share is not None]
    if not delays or max(delays) < MUCH_WAITING:
        return ""
    wanted = "others want them too, of this program or of others"
    return f", but {max(delays):.0%} of the time that they want one they wait: {wanted}, so no time is typical"
