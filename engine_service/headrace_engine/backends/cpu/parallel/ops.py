"""The decoder's ops on one rank, recorded."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_engine.backends.cpu.adapters import CpuAdapters
from headrace_engine.backends.cpu.offsets import Activation, Offsets, RecordedOp
from headrace_engine.backends.cpu.ops import RecordingOps
from headrace_engine.backends.cpu.parallel.share import CpuShare, InputPart
from headrace_engine.backends.cpu.products import Projection, Vector
from headrace_engine.models.rope.tables import PositionTables
from headrace_engine.models.spec import DecoderSpec
from headrace_engine.native import Activations, PackedMatrix, Program


class RankOps(RecordingOps):
    """Records a rank's ops, and exchanges between them.

    Products with matrices cut by outputs give this rank's part of the columns, which is narrower than the whole; those
    with matrices cut by inputs, its part of every sum. An op that needs whole rows gathers the parts, or adds them up,
    first; what works on columns or heads one by one takes the parts.

    Args:
        share: what the rank holds.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        filled: float,
        positions: PositionTables,
        activations: Activations,
        share: CpuShare,
        adapters: CpuAdapters | None = None,
    ) -> None:
        super().__init__(spec, filled, positions, activations, adapters)
        self._share = share
        self._wholes: dict[Activation, Activation] = {}
        self._addends: set[Activation] = set()

    def whole(self, x: Activation, width: int) -> Activation:
        """See RecordingOps. Records an exchange if x is a part, once."""
        if x.width == width and x not in self._addends:
            return x
        if x not in self._wholes:
            out = Activation(width, x.rows)
            self._wholes[x] = self._summed(x, out) if x in self._addends else self._gathered(x, out)
        return self._wholes[x]

    def embedding(self, table: PackedMatrix, batch: None) -> Activation:
        """See Ops. Every rank looks up the ids that it has."""
        found = super().embedding(table, batch)
        return self._gathered(found, Activation(found.width), table.matrix.outputs)

    def rms_norm(self, x: Activation, weight: Vector, eps: float) -> Activation:
        """See Ops."""
        return super().rms_norm(self.whole(x, len(weight)), weight, eps)

    def add_rms_norm(
        self, x: Activation, residual: Activation, weight: Vector, eps: float
    ) -> tuple[Activation, Activation]:
        """See Ops."""
        return super().add_rms_norm(self.whole(x, len(weight)), residual, weight, eps)

    def layer_norm(self, x: Activation, weight: Vector, bias: Vector | None, eps: float) -> Activation:
        """See Ops."""
        return super().layer_norm(self.whole(x, len(weight)), weight, bias, eps)

    def linear(self, x: Activation, weight: PackedMatrix | InputPart, bias: Vector | None = None) -> Activation:
        """See Ops. Rank 0 alone adds the bias to products that are added up."""
        if isinstance(weight, PackedMatrix):
            return super().linear(x, weight, bias)
        (part,) = super().linears(x, [(weight.weight, bias if self._share.rank == 0 else None)])
        self._addends.add(part)
        return part

    def linears(self, x: Activation, projections: Sequence[Projection]) -> list[Activation]:
        """See Ops."""
        weight, _ = projections[0]
        return super().linears(self.whole(x, weight.matrix.inputs), projections)

    def adapted(
        self, x: Activation, outs: Sequence[Activation], names: Sequence[str], batch: None
    ) -> Sequence[Activation]:
        """See Ops. What is added to sums is computed of the inputs that they were computed of."""
        if self._share.is_added(names[0]):
            changed = super().adapted(x, outs, names, batch)
            self._addends.update(changed)
            return changed
        return super().adapted(self._wholes.get(x, x), outs, names, batch)

    def scaled(self, x: Activation, scale: float, soft_cap: float) -> Activation:
        """See Ops."""
        return super().scaled(self.whole(x, x.width), scale, soft_cap)

    def add(self, x: Activation, y: Activation) -> Activation:
        """See Ops."""
        width = max(x.width, y.width)
        return super().add(self.whole(x, width), self.whole(y, width))

    def sample(self, logits: Activation) -> None:
        """See RecordingOps. Rank 0 alone samples; the others keep the same values live."""
        if self._share.rank == 0:
            super().sample(logits)
        else:
            self.recorded.append(RecordedOp((logits, self.states, self.selected), (), _nothing))

    def _heads_normed(self, x: Activation, weight: Vector, eps: float) -> Activation:
        """See RecordingOps. The norm needs the heads of all ranks."""
        whole, out = self.rms_norm(x, weight, eps), Activation(x.width)

        def record(program: Program, offsets: Offsets) -> None:
            program.columns(offsets[whole], offsets[out], self._share.rank * out.width)

        self.recorded.append(RecordedOp((whole,), (out,), record))
        return out

    def _gathered(self, part: Activation, out: Activation, table_rows: int = 0) -> Activation:
        def record(program: Program, offsets: Offsets) -> None:
            program.gather(offsets[part], offsets[out], table_rows)

        self.recorded.append(RecordedOp((part,), (out,), record))
        return out

    def _summed(self, part: Activation, out: Activation) -> Activation:
        def record(program: Program, offsets: Offsets) -> None:
            program.reduce(offsets[part], offsets[out])

        self.recorded.append(RecordedOp((part,), (out,), record, ((out, part),)))
        return out


def _nothing(program: Program, offsets: Offsets) -> None:
    """Record no op."""
