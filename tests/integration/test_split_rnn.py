"""An RNN call run layer by layer gives the same bits as the whole call, and is left whole where it might not."""

import copy
import itertools
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tracekit.collectors.patching import skip_our_frames
from tracekit.collectors.split_rnn import SplitRNN, can_split

STEPS, BATCH, WIDTH, HIDDEN = 5, 3, 4, 6

KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="tanh", **kwargs),
    "relu": lambda *args, **kwargs: nn.RNN(*args, nonlinearity="relu", **kwargs),
    "projecting lstm": lambda *args, **kwargs: nn.LSTM(*args, proj_size=2, **kwargs),
}
MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "train": nullcontext,
    "eval": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}


class Notes:
    """What an observer was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, tuple[int, ...]]] = []

    def before(self, layer: int, input: Tensor) -> None:
        self.told.append(("before", layer, tuple(input.shape)))

    def after(self, layer: int, output: Tensor) -> None:
        self.told.append(("after", layer, tuple(output.shape)))

    @property
    def layers(self) -> list[tuple[str, int]]:
        return [(when, layer) for when, layer, _ in self.told]


class Threads(Notes):
    """Another thread count for every layer."""

    def before(self, layer: int, input: Tensor) -> None:
        super().before(layer, input)
        torch.set_num_threads(1 + layer % 2)


def in_order(layers: int) -> list[tuple[str, int]]:
    return [(when, layer) for layer in range(layers) for when in ("before", "after")]


@pytest.fixture(scope="module", autouse=True)
def as_recorded() -> None:
    """As in a recorded program; before torch.compile sees our functions, or its reset would undo it."""
    skip_our_frames(torch._dynamo.eval_frame)


@pytest.fixture
def split() -> Iterator[SplitRNN]:
    split, originals = SplitRNN(), [getattr(torch._VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")]
    split.install(torch._VF)
    yield split
    split.off()
    assert [getattr(torch._VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")] == originals


def inputs_of(module: nn.RNNBase, is_packed: bool, has_hx: bool, dtype: torch.dtype) -> list[Any]:
    """Leaves that ask for gradients: the input, or the sequences that it is packed of, and the states."""
    if is_packed:
        leaves = [torch.randn(length, WIDTH, dtype=dtype) for length in (2, STEPS, 3)]
    else:
        leaves = [torch.randn(*((BATCH, STEPS) if module.batch_first else (STEPS, BATCH)), WIDTH, dtype=dtype)]
    if has_hx:
        sections = module.num_layers * (1 + module.bidirectional)
        sizes = [module.proj_size or HIDDEN] + [HIDDEN] * isinstance(module, nn.LSTM)
        leaves += [torch.randn(sections, BATCH, size, dtype=dtype) for size in sizes]
    return [leaf.requires_grad_() for leaf in leaves]


def flat(value: Any) -> list[Tensor]:
    """The tensors of a module's result."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for part in value if part is not None for tensor in flat(part)]


def outcome(module: nn.RNNBase, is_packed: bool, leaves: list[Any]) -> tuple[list[Tensor], list[Any]]:
    """All tensors that come of a forward and a backward, and the looks of the output."""
    torch.manual_seed(1)
    module.zero_grad()
    for leaf in leaves:
        leaf.grad = None
    count = BATCH if is_packed else 1
    input = pack_sequence(leaves[:count], enforce_sorted=False) if is_packed else leaves[0]
    hx = leaves[count:]
    result = module(input, (tuple(hx) if len(hx) == 2 else hx[0]) if hx else None)
    tensors = flat(result)
    if torch.is_grad_enabled():
        weighted = (tensor * torch.randn(tensor.shape, dtype=tensor.dtype) for tensor in tensors if tensor.grad_fn)
        sum((tensor.sum() for tensor in weighted), torch.zeros(())).backward()
        gradients = [tensor.grad for tensor in (*module.parameters(), *leaves)]
        assert all(gradient is not None for gradient in gradients)
        tensors += [gradient for gradient in gradients if gradient is not None]
    tensors.append(torch.get_rng_state())
    output = result[0].data if isinstance(result[0], PackedSequence) else result[0]
    name = output.grad_fn.name() if output.grad_fn is not None else ""
    return tensors, [type(result), output._is_view(), name]


def looks(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.is_contiguous(), tensor.requires_grad


def bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(torch.uint8)


def assert_same(split: SplitRNN, module: nn.RNNBase, is_packed: bool, leaves: list[Any]) -> None:
    whole, view = outcome(module, is_packed, leaves)
    notes = Notes()
    with split.asked(notes):
        parts, view_of_parts = outcome(module, is_packed, leaves)
    assert notes.layers == in_order(module.num_layers)
    assert view_of_parts == view
    assert list(map(looks, parts)) == list(map(looks, whole))
    assert all(map(torch.equal, map(bits, parts), map(bits, whole)))


PATHS = {
    "float32-padded": (torch.float32, False),
    "float32-packed": (torch.float32, True),
    "float64-padded": (torch.float64, False),
    "float64-packed": (torch.float64, True),
}
# What `make test` takes of each kind: padded in single precision, or packed in double, which are the least alike.
SOON = {
    "lstm": "float32-padded", "gru": "float64-packed", "tanh": "float32-padded", "relu": "float64-packed",
    "projecting lstm": "float32-padded",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "dtype", "is_packed"),
    [
        pytest.param(kind, *how, id=f"{kind}-{path}", marks=[pytest.mark.long] * (path != SOON[kind]))
        for kind, (path, how) in itertools.product(KINDS, PATHS.items())
    ],
)
def test_same_bits(split: SplitRNN, kind: str, dtype: torch.dtype, is_packed: bool) -> None:
    booleans = (False, True)
    for layers, both, first, has_hx, bias in itertools.product((2, 3), booleans, booleans, booleans, booleans):
        if (layers == 3 and first) or (not bias and has_hx):
            continue
        module = KINDS[kind](
            WIDTH, HIDDEN, layers, bidirectional=both, batch_first=first, dropout=0.3, bias=bias, dtype=dtype
        )
        assert can_split(module)
        for mode, context in MODES.items():
            module.train(mode != "eval")
            for module.dropout in (0.0, 0.3) if mode != "eval" else (0.3,):
                leaves = inputs_of(module, is_packed, has_hx, dtype)
                with context():
                    assert_same(split, module, is_packed, leaves)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.long), torch.float16])
def test_same_bits_where_threads_share_the_work(split: SplitRNN, dtype: torch.dtype) -> None:
    module = nn.LSTM(256, 256, 3, dropout=0.3, batch_first=True, dtype=dtype)
    input = torch.randn(32, 16, 256, dtype=dtype)
    with torch.no_grad() if dtype is torch.float16 else nullcontext():
        assert_same(split, module, False, [input.requires_grad_()])


def test_same_bits_without_onednn(split: SplitRNN) -> None:
    module = nn.LSTM(WIDTH, HIDDEN, 3, dropout=0.3, batch_first=True)
    with torch.backends.mkldnn.flags(enabled=False):
        assert_same(split, module, False, inputs_of(module, False, True, torch.float32))


def test_same_bits_of_some_frozen_and_shared_weights_and_inputs_of_odd_layout(split: SplitRNN) -> None:
    module = nn.LSTM(HIDDEN, HIDDEN, 3)
    module.weight_hh_l2 = module.weight_hh_l1
    module.weight_ih_l0.requires_grad_(False)
    results = []
    for asked in (nullcontext(), split.asked(Notes())):
        torch.manual_seed(0)
        module.zero_grad()
        input = torch.randn(HIDDEN, BATCH, STEPS).permute(2, 1, 0).requires_grad_()
        hx = torch.randn(BATCH, 3, HIDDEN).transpose(0, 1).requires_grad_()
        with asked:
            output, final = module(input, (hx, hx))
        leaves = [parameter for parameter in module.parameters() if parameter.requires_grad] + [input, hx]
        gradients = torch.autograd.grad(output.square().sum() + final[1].sum(), leaves)
        results.append([output, *final, *gradients])
    assert all(map(torch.equal, *results))


def test_unbatched_input(split: SplitRNN) -> None:
    module, notes = nn.GRU(WIDTH, HIDDEN, 2, bidirectional=True), Notes()
    input = torch.randn(STEPS, WIDTH)
    with split.asked(notes):
        parts = module(input)
    assert all(map(torch.equal, parts, module(input)))
    assert notes.told == [
        ("before", 0, (STEPS, 1, WIDTH)),
        ("after", 0, (STEPS, 1, 2 * HIDDEN)),
        ("before", 1, (STEPS, 1, 2 * HIDDEN)),
        ("after", 1, (STEPS, 1, 2 * HIDDEN)),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_tensors_are_saved_for_the_backward(split: SplitRNN, kind: str) -> None:
    """Checkpointing compares them between a forward that was split and one, done again, that was not."""
    module = KINDS[kind](WIDTH, HIDDEN, 3, dropout=0.3, batch_first=True)
    gradients = []
    for asked in (nullcontext(), split.asked(Notes())):
        torch.manual_seed(0)
        input = torch.randn(BATCH, STEPS, WIDTH, requires_grad=True)
        with asked:
            output = checkpoint(lambda input: module(input)[0], input, use_reentrant=False)
        gradients.append(torch.autograd.grad(output.sum(), (input, *module.parameters())))
    assert all(map(torch.equal, *gradients))


def test_a_thread_count_for_every_layer(split: SplitRNN) -> None:
    module, notes, count = nn.LSTM(64, 128, 4), Threads(), torch.get_num_threads()
    input = torch.randn(24, 16, 64, requires_grad=True)
    whole = module(input)[0]
    try:
        for _ in range(5):
            with split.asked(notes):
                parts = module(input)[0]
            parts.sum().backward()
    finally:
        torch.set_num_threads(count)
    assert notes.layers == in_order(4) * 5
    assert torch.allclose(parts, whole, atol=1e-5)


def test_the_first_call_of_a_block_is_split_and_no_other(split: SplitRNN) -> None:
    first, second, notes, inner = nn.LSTM(WIDTH, HIDDEN, 2), nn.GRU(HIDDEN, HIDDEN, 3), Notes(), Notes()
    input = torch.randn(STEPS, BATCH, WIDTH)
    second(first(input)[0])
    with split.asked(notes):
        second(first(input)[0])
    second(first(input)[0])
    assert notes.layers == in_order(2)
    with split.asked(notes):
        pass
    first(input)
    assert notes.layers == in_order(2)
    with split.asked(notes):
        with split.asked(inner):
            first(input)
            first(input)
        second(torch.randn(STEPS, BATCH, HIDDEN))
    assert (notes.layers, inner.layers) == (in_order(2) + in_order(3), in_order(2))


def test_other_threads_are_not_asked(split: SplitRNN) -> None:
    module, notes, input = nn.LSTM(WIDTH, HIDDEN, 2), Notes(), torch.randn(STEPS, BATCH, WIDTH)
    with split.asked(notes):
        other = threading.Thread(target=module, args=(input,))
        other.start()
        other.join()
        assert not notes.told
        module(input)
    assert notes.layers == in_order(2)


def test_one_layer_has_nothing_to_split(split: SplitRNN) -> None:
    module, notes = nn.LSTM(WIDTH, HIDDEN, bidirectional=True), Notes()
    assert not can_split(module)
    with split.asked(notes):
        module(torch.randn(STEPS, BATCH, WIDTH))
    assert not notes.told


WRONG: dict[str, Callable[[list[Any]], Any]] = {
    "an argument too few": lambda arguments: arguments.pop(),
    "no arguments": lambda arguments: arguments.clear(),
    "one state": lambda arguments: arguments.__setitem__(1, arguments[1][:1]),
    "a state of too few layers": lambda arguments: arguments.__setitem__(1, [s[1:] for s in arguments[1]]),
    "a state of another batch": lambda arguments: arguments.__setitem__(1, [s[:, 1:] for s in arguments[1]]),
    "a weight too few": lambda arguments: arguments.__setitem__(2, arguments[2][1:]),
    "weights of another layer": lambda arguments: arguments[2].reverse(),
    "a weight of another type": lambda arguments: arguments[2].__setitem__(5, arguments[2][5].float()),
    "no weight": lambda arguments: arguments[2].__setitem__(5, None),
    "a number for a boolean": lambda arguments: arguments.__setitem__(3, "yes"),
    "too many layers": lambda arguments: arguments.__setitem__(4, 3),
    "an impossible dropout": lambda arguments: arguments.__setitem__(5, 2.0),
    "an input of another width": lambda arguments: arguments.__setitem__(0, arguments[0][..., 1:]),
    "an input of no steps": lambda arguments: arguments.__setitem__(0, arguments[0][:0]),
    "no tensor": lambda arguments: arguments.__setitem__(0, 1),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_errors_are_those_of_torch(split: SplitRNN, wrong: str) -> None:
    module = nn.LSTM(WIDTH, HIDDEN, 2, dtype=torch.float64)
    state = torch.zeros(2, BATCH, HIDDEN, dtype=torch.float64)
    arguments: list[Any] = [torch.randn(STEPS, BATCH, WIDTH, dtype=torch.float64), [state, state]]
    arguments += [list(module._flat_weights), True, 2, 0.5, True, False, False]
    WRONG[wrong](arguments)
    with pytest.raises(Exception) as expected:  # noqa: PT011
        torch._VF.lstm(*arguments)
    with pytest.raises(expected.type) as raised, split.asked(Notes()):
        torch._VF.lstm(*arguments)
    assert str(raised.value) == str(expected.value)
    notes = Notes()
    with split.asked(notes):
        module(torch.randn(STEPS, BATCH, WIDTH, dtype=torch.float64))
    assert notes.layers == in_order(2)


def test_an_error_of_the_program_ends_the_asking(split: SplitRNN) -> None:
    module, notes, input = nn.LSTM(WIDTH, HIDDEN, 2), Notes(), torch.randn(STEPS, BATCH, WIDTH)
    with pytest.raises(ValueError, match="theirs"), split.asked(notes):
        raise ValueError("theirs")
    module(input)
    assert not notes.told


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Subclass(Tensor):
    pass


def test_what_is_watched_or_unlike_is_left_whole(split: SplitRNN) -> None:
    module, notes = nn.LSTM(WIDTH, HIDDEN, 2), Notes()
    input = torch.randn(STEPS, BATCH, WIDTH)
    calls: dict[str, Callable[[], object]] = {
        "trace": lambda: torch.jit.trace(module, (input,), check_trace=False),
        "functorch": lambda: torch.func.grad(lambda x: module(x)[0].sum())(input),
        "compile": lambda: torch.compile(lambda x: module(x)[0] + 1, backend="eager")(input),
        "subclass": lambda: module(input.as_subclass(Subclass)),
        "meta": lambda: copy.deepcopy(module).to("meta")(input.to("meta")),
    }
    modes: list[AbstractContextManager[Any]] = [FunctionMode(), DispatchMode()]
    with torch.autocast("cpu"), suppress(RuntimeError):  # not every CPU has an LSTM in bfloat16
        module(input)
        modes.append(torch.autocast("cpu"))
    for name, call in calls.items():
        with split.asked(notes):
            call()
        assert not notes.told, name
    for mode in modes:
        with split.asked(notes), mode:
            module(input)
        assert not notes.told, mode


def test_script_and_trace(split: SplitRNN) -> None:
    for kind, make in KINDS.items():
        module, input = nn.Sequential(make(WIDTH, HIDDEN, 2)).eval(), torch.randn(STEPS, BATCH, WIDTH)
        for compiled in (torch.jit.script(module), torch.jit.trace(module, (input,))):
            assert f"aten::{'rnn_' * (kind in ('tanh', 'relu'))}{kind.split()[-1]}(" in str(compiled.inlined_graph)
            assert torch.equal(compiled(input)[0], module(input)[0])


@pytest.mark.parametrize("allow_rnn", [False, True])
def test_compile_takes_the_same_graphs(allow_rnn: bool) -> None:
    module, input = nn.LSTM(WIDTH, HIDDEN, 2).eval(), torch.randn(STEPS, BATCH, WIDTH)

    def function(x: Tensor) -> Tensor:
        return torch.relu(module(x * 2)[0])

    explained = []
    with torch._dynamo.config.patch(allow_rnn=allow_rnn):
        for patched in (False, True):
            torch._dynamo.reset()
            split = SplitRNN()
            if patched:
                split.install(torch._VF)
            report = torch._dynamo.explain(function)(input)
            explained.append((report.graph_count, report.graph_break_count, report.op_count))
            if allow_rnn:
                whole = torch.compile(function, backend="eager", fullgraph=True)
                assert torch.equal(whole(input), function(input))
            split.off()
    assert explained[0] == explained[1]
    assert explained[0][1] == 0 or not allow_rnn


def test_modules_are_copied_and_pickled_as_ever(split: SplitRNN) -> None:
    module, notes, input = nn.LSTM(WIDTH, HIDDEN, 2), Notes(), torch.randn(STEPS, BATCH, WIDTH)
    plain = pickle.dumps(module)
    with split.asked(notes):
        expected = module(input)[0]
        assert pickle.dumps(module) == plain
    for other in (copy.deepcopy(module), pickle.loads(plain)):
        with split.asked(notes):
            assert torch.equal(other(input)[0], expected)
    assert notes.layers == in_order(2) * 3


def test_what_can_be_split() -> None:
    assert can_split(nn.GRU(2, 2, 2, bidirectional=True, bias=False))
    assert not can_split(nn.GRU(2, 2))
    assert not can_split(nn.LSTM(2, 2, 2, device="meta"))
    assert not can_split(nn.Linear(2, 2))
