"""How the steps of an epoch are carried out. No choice here changes a result beyond rounding.

On a CUDA device the steps are recorded in CUDA graphs, some dozens in each, and an epoch is a
handful of launches: nothing waits for the host before its end. On the CPU the same functions run
one after the other.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from eigenscape.errors import SubstitutionWarning, require_choice, require_count
from eigenscape.parallel import epoch_order, has_kernels, record_graph
from eigenscape_papers.ensemble._data import epoch_noise
from eigenscape_papers.ensemble._objective import SUMS, Objective
from eigenscape_papers.ensemble._stacked import Stack
from eigenscape_papers.ensemble._update import Update

# Most memory for inputs that were gathered ahead of their steps.
_AHEAD_BYTES = {"cuda": 2**30, "cpu": 2**25}
# Fewest samples per network in a batch of an evaluation.
_EVALUATION_BATCH = 256
# Unfolding multiplies activations by the kernel's size; where kernels of cuDNN are busy anyway
# (in · out channels from here on), it does not pay.
_WIDE = 2048


@dataclass(frozen=True)
class Engine:
    """How the steps are carried out.

    Attributes:
        stacking: "vmap" runs all networks as one, with batched matrix products; "loop" runs them
            one after the other, on a GPU side by side on streams; "auto" chooses: a loop for a
            single seed, for convolutions on the CPU, and for wide ones on a GPU.
        convolution: Under vmap, "fused" has kernels of our own for a GPU, "unfold" makes
            convolutions batched matrix products, "grouped" leaves them to grouped convolution;
            "auto" takes the first for float32 on a GPU, where Triton is installed.
        graphs: On a GPU, record the steps in CUDA graphs.
        steps_per_graph: Steps recorded in one graph, at most.
        num_streams: Streams of a loop on a GPU, at most; 1 for none.
        fused: On a GPU, use PyTorch's fused kernels for the update.
        channels_last: Give images to wide convolutions in a loop with their channels beside each
            other, as the matrix units of a GPU want them: VGG11 with TF32 takes 2.5 ms a step in
            place of 2.9. Such a model must not call `view` on feature maps.
    """

    stacking: str = "auto"
    convolution: str = "auto"
    graphs: bool = True
    steps_per_graph: int = 32
    num_streams: int = 8
    fused: bool = True
    channels_last: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        require_choice(self.stacking, ("auto", "vmap", "loop"), "Engine(stacking=...)")
        choices = ("auto", "fused", "unfold", "grouped")
        require_choice(self.convolution, choices, "Engine(convolution=...)")
        require_count(self.steps_per_graph, "Engine(steps_per_graph=...)")
        require_count(self.num_streams, "Engine(num_streams=...)")

    def set_up(self, stack: Stack, *, tf32: bool = False) -> None:
        """Tell a stack how to run."""
        on_gpu = stack.device.type == "cuda"
        wide = _has_convolutions(stack.model, _WIDE)
        loop = stack.size == 1 or (wide if on_gpu else _has_convolutions(stack.model, 1))
        stack.use_vmap = self.stacking == "vmap" or (self.stacking == "auto" and not loop)
        stack.channels_last = self.channels_last and wide
        stack.convolution = self.convolution
        if self.convolution == "auto" and has_kernels(stack.theta):
            stack.convolution = "fused"
        elif self.convolution == "auto":
            # cuDNN has a fair grouped kernel for TF32, none for float32.
            stack.convolution = "unfold" if on_gpu and not tf32 else "grouped"
        count = min(self.num_streams, stack.size)
        if on_gpu and count > 1 and not stack.use_vmap:
            stack.streams = [torch.cuda.Stream(stack.device) for _ in range(count)]


class Runner:
    """Runs epochs and evaluations of a stack of networks.

    Attributes:
        sums: (4, S) float64 on the device: what `SUMS` names, over the epoch that ran last.
        test_sums: The same for the last evaluation.
    """

    def __init__(
        self,
        stack: Stack,
        update: Update,
        objective: Objective,
        data: tuple[Tensor, Tensor],
        *,
        seeds: Sequence[int],
        batch_size: int,
        engine: Engine,
    ) -> None:
        """Lay the epoch out; nothing runs yet.

        Args:
            stack: The networks.
            update: The update of their parameters.
            objective: The loss.
            data: Inputs and targets, on the device.
            seeds: Seeds of the networks.
            batch_size: Samples per step.
            engine: How to run.
        """
        self._stack, self._update, self._objective = stack, update, objective
        self._inputs, self._targets = data
        self._seeds, self._engine = tuple(seeds), engine
        self._count, self._batch = len(self._inputs), min(batch_size, len(self._inputs))
        self._on_gpu = stack.device.type == "cuda"
        shape = (stack.size, self._count)
        self._order = torch.empty(shape, dtype=torch.int64, device=stack.device)
        # Two buffers: the next epoch's order is drawn while this one's may still be on its way.
        self._hosts = [
            torch.empty(shape, dtype=torch.int64, pin_memory=self._on_gpu) for _ in range(2)
        ]
        self._drawn: int | None = None
        self.sums, self.test_sums = (
            torch.zeros(len(SUMS), stack.size, dtype=torch.float64, device=stack.device)
            for _ in range(2)
        )
        # By shape: where the order of the samples is written, and what replays the steps.
        self._graphs: dict[tuple[int, ...], tuple[Tensor | None, Callable[[], None]]] = {}
        self._use_graphs = self._on_gpu and engine.graphs
        self._pool = torch.cuda.graph_pool_handle() if self._use_graphs else None
        self._test: tuple[Tensor, Tensor, Objective] | None = None

    def evaluate_on(self, data: tuple[Tensor, Tensor], objective: Objective) -> None:
        """Say on which data `evaluate` works."""
        self._test = (*data, objective)

    def run_epoch(self, epoch: int, rate: float) -> None:
        """Run the steps of an epoch, counted from 0. On a GPU this returns before they are done."""
        self._draw(epoch)
        self._order.copy_(self._hosts[epoch % 2], non_blocking=True)
        self._update.set_rate(rate)
        pieces = self._pieces()
        for index in pieces:
            self._prepare(index)
        self.sums.zero_()
        # Seeded anew in each epoch and after the recording of graphs, which draws too: a training
        # that continues from a checkpoint then needs no state of the generator.
        torch.manual_seed(epoch_noise(self._seeds, epoch))
        for index in pieces:
            key = tuple(index.shape)
            if key in self._graphs:
                self._replay(key, index)
            else:
                self._steps(index)
        # Drawing the next order now costs nothing where the device is still busy.
        self._draw(epoch + 1)

    def evaluate(self) -> None:
        """Add up losses and hits over the test data, with the weights as they are."""
        if self._use_graphs and self._test is not None:
            key = (0,)
            if key not in self._graphs:
                self._record(key, self._evaluate, self._evaluate)
        if (0,) in self._graphs:
            self._replay((0,))
        else:
            self._evaluate()

    def state(self) -> dict[str, Tensor]:
        """Return everything that changes from epoch to epoch, by name; not copied."""
        fixed = {f"fixed.{name}": tensor for name, tensor in self._stack.fixed.items()}
        update = {f"update.{name}": tensor for name, tensor in self._update.state.items()}
        return {"theta": self._stack.theta, **fixed, **update}

    def _draw(self, epoch: int) -> None:
        if self._drawn == epoch:
            return
        for seed, row in zip(self._seeds, self._hosts[epoch % 2], strict=True):
            epoch_order(seed, epoch, self._count, out=row)
        self._drawn = epoch

    def _pieces(self) -> list[Tensor]:
        """Cut an epoch's order into views (K, S, B): K steps each, the ragged one at the end."""
        size, full = self._batch, self._count // self._batch
        whole = self._order[:, : full * size].view(self._stack.size, full, size).transpose(0, 1)
        pieces = list(whole.split(self._lengths(full)))
        if full * size < self._count:
            pieces.append(self._order[:, full * size :].unsqueeze(0))
        return pieces

    def _lengths(self, full: int) -> list[int]:
        """Cut the full steps of an epoch into parts whose lengths differ by one at most."""
        sample = self._inputs[0].numel() * self._inputs.element_size()
        bytes_per_step = max(1, self._stack.size * self._batch * sample)
        fits = max(1, _AHEAD_BYTES["cuda" if self._on_gpu else "cpu"] // bytes_per_step)
        parts = -(-full // min(self._engine.steps_per_graph, fits))
        return [full // parts + (number < full % parts) for number in range(parts)]

    def _prepare(self, index: Tensor) -> None:
        """Record the steps of a piece of this shape, where that is wanted and not yet done."""
        key = tuple(index.shape)
        if self._use_graphs and key not in self._graphs:
            buffer = index.contiguous().clone()
            # Two steps are enough to have every kernel loaded and every library warm.
            self._record(key, lambda: self._steps(buffer), lambda: self._steps(buffer[:2]), buffer)

    def _steps(self, index: Tensor) -> None:
        """Make the steps whose samples `index` (K, S, B) names."""
        K, S, B = index.shape
        flat = index.reshape(-1)
        x = self._inputs.index_select(0, flat).view(K, S, B, *self._inputs.shape[1:])
        y = self._targets.index_select(0, flat).view(K, S, B, *self._targets.shape[1:])
        prepared = self._objective.prepare(y)
        outputs = []
        for step in range(K):
            now = [part[step] for part in prepared]

            def slope(z: Tensor, which: slice, now: list[Tensor] = now) -> Tensor:
                return self._objective.slope(z, tuple(part[which] for part in now))

            z, grads = self._stack.gradients(x[step], slope)
            self._update.step([grad for grad in grads if grad is not None])
            outputs.append(z)
        self.sums.add_(self._objective.sums(torch.stack(outputs), prepared))

    def _evaluate(self) -> None:
        if self._test is None:
            return
        inputs, targets, objective = self._test
        self.test_sums.zero_()
        size = max(self._batch, _EVALUATION_BATCH)
        for x, y in zip(inputs.split(size), targets.split(size), strict=True):
            z = self._stack.outputs(x.expand(self._stack.size, *x.shape))
            prepared = objective.prepare(y.expand(1, self._stack.size, *y.shape))
            self.test_sums.add_(objective.sums(z.unsqueeze(0), prepared))

    def _record(
        self,
        key: tuple[int, ...],
        work: Callable[[], None],
        warm_up: Callable[[], None],
        buffer: Tensor | None = None,
    ) -> None:
        """Record work in a graph; if that fails, go on without graphs."""
        replay = record_graph(
            work,
            warm_up,
            self._stack.device,
            changing=[*self.state().values(), self.sums, self.test_sums],
            what="The training steps",
            advice="`Engine(graphs=False)` asks for that without a warning.",
            # One for all graphs: they never run at the same time, and none reads what another
            # one left in it.
            pool=self._pool,
        )
        if replay is None:
            self._graphs.clear()
            self._use_graphs = False
        else:
            self._graphs[key] = buffer, replay

    def _replay(self, key: tuple[int, ...], index: Tensor | None = None) -> None:
        buffer, replay = self._graphs[key]
        if buffer is not None and index is not None:
            buffer.copy_(index)
        replay()


def choose_stacking(stack: Stack, trial: Callable[[], None]) -> None:
    """Try a step under vmap, and use a loop if the model cannot run that way.

    Args:
        stack: The networks.
        trial: Makes a step; raises what the model raises.
    """
    if not stack.use_vmap:
        trial()
        return
    try:
        trial()
    except RuntimeError as error:
        stack.use_vmap = False
        trial()  # an error of the model's own comes again, and is the user's to see
        warnings.warn(
            f"The model cannot run under vmap ({str(error).strip().splitlines()[0]}). Its seeds "
            "run one after the other: the results are the same, only slower. "
            "`Engine(stacking='loop')` asks for that without a warning.",
            SubstitutionWarning,
            stacklevel=2,
        )


def _has_convolutions(model: nn.Module, width: int) -> bool:
    """Say whether some convolution has at least `width` pairs of channels."""
    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return any(
        module.in_channels * module.out_channels // module.groups >= width
        for module in model.modules()
        if isinstance(module, kinds)
    )
