"""The harvest plan: what others may do on this node while the program keeps its pace, but for a margin."""

from collections.abc import Sequence

from tracekit.analysis.noise import TOGETHER
from tracekit.analysis.noise_effects import NoiseEffect
from tracekit.analysis.report_schema import Advice, Gain, Setting
from tracekit.models.noise import Mix, largest_safe
from tracekit.noise.spec import ON_CPUS, Spec
from tracekit.record.topology import format_cpu_list

_NEARLY = 0.05  # who lacked so much of a CPU had it
CORES, NOISE = "node.spare_cores", "node.allowed_noise"


def harvest(specs: Sequence[Spec], effects: Sequence[NoiseEffect], mixes: Sequence[Mix], margin: float) -> Advice:
    """The noises that may be there together, where that was seen to be safe; else the one that is by itself."""
    by_name = {effect.noise: effect for effect in effects}
    safe = largest_safe(specs, by_name)
    if not safe:
        said = ", ".join(f"{effect.noise}: {effect.verdict}" for effect in effects)
        return Advice([], f"Nothing is recommended to share this node: no noise was certainly safe ({said}).")
    names = sorted(spec.label for spec in safe)
    mixed = by_name.get(TOGETHER.join(names))
    if len(safe) > 1 and (mixed is None or mixed.verdict != "safe"):
        verdict = "not tried" if mixed is None else mixed.verdict
        alone = ", ".join(names)
        why = f"Each by itself is safe: {alone}; together they are {verdict}, so no mix of them is recommended."
        return Advice([], why)
    effect = mixed if mixed is not None else by_name[names[0]]
    slowdown = effect.slowdown
    gain = Gain(-slowdown.high, -slowdown.expected, -slowdown.low)
    why = (
        f"the time of a step changed by {slowdown.expected:+.1%} ({slowdown.low:+.1%} to {slowdown.high:+.1%}) in"
        f" {effect.blocks} blocks, which is less than {margin:.1%}; the guest got {effect.share:.0%} of these doses"
    )
    predicted = next((mix.predicted for mix in mixes if mix.noise == effect.noise), None)
    if predicted is not None:
        why += f"; {predicted.expected:+.1%} was predicted"
    guest = _guest(safe)
    settings = [Setting(NOISE, None, ", ".join(names), gain, "measured", "identical", why, guest)]
    had = [spec.dose * min(by_name[spec.label].share, effect.share) for spec in safe if spec.kind.name in ON_CPUS]
    cores = sum(int(cpus + _NEARLY) for cpus in had)
    if cores:
        settings.append(Setting(CORES, None, cores, gain, "measured", "identical", why, guest))
    return Advice(settings, f"{', '.join(names)} may share this node, as measured here.")


def _guest(safe: Sequence[Spec]) -> str:
    """How to start a guest in the place where it was tried."""
    cpus = sorted({cpu for spec in safe for cpu in spec.cpus})
    nice = max(spec.nice for spec in safe)
    words = [f"taskset -c {format_cpu_list(cpus)}"] if cpus else []
    words += [f"nice -n {nice}"] if nice else []
    words += ["ionice -c 3"] if any(spec.io_idle for spec in safe) else []
    return " ".join([*words, "GUEST..."])
