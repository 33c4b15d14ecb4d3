"""How the program has wrapped a model in DistributedDataParallel."""

from collections.abc import Iterable
from typing import Any

from .exploration import compiles

MOST_MODELS = 16  # that are told of, the last ones
_MOST_PARAMETERS = 4000  # whose sizes are told: the status is written every few seconds
_MIB = 1 << 20


def facts_of(configurations: Iterable[dict[str, object]]) -> dict[str, object]:
    """What the status of a process says of the models that it has wrapped."""
    told = [{**each, "compiled": compiles()} for each in configurations]
    return {"ddp": told} if told else {}


def configuration_of(model: Any) -> dict[str, object]:
    """How a model was wrapped, and its parameters in the order in which it has them."""
    named = [(name, each) for name, each in model.module.named_parameters() if each.requires_grad]
    told = named[:_MOST_PARAMETERS]
    return {
        "bucket_cap_mb": getattr(model, "bucket_bytes_cap", 0) / _MIB,
        "bucket_caps_mb": [each / _MIB for each in getattr(model, "bucket_bytes_cap_list", ())],
        "is_default_cap": bool(getattr(model, "bucket_bytes_cap_default", False)),
        "gradient_as_bucket_view": bool(getattr(model, "gradient_as_bucket_view", False)),
        "static_graph": bool(getattr(model, "static_graph", False)),
        "find_unused_parameters": bool(getattr(model, "find_unused_parameters", False)),
        "broadcast_buffers": bool(getattr(model, "broadcast_buffers", False)),
        "parameters": len(named),
        "bytes": sum(each.numel() * each.element_size() for _, each in named),
        "names": [name for name, _ in told],
        "sizes": [each.numel() * each.element_size() for _, each in told],
    }
