"""The batches of one rank, in the order in which it trains on them; those of steps that were not applied can be put back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType

from meshwright.train.data.samples import Batch, Prefetcher, SampleSource
from meshwright.train.job import TrainingJob
from meshwright.train.parallel.batches import Deal, even_deal, micro_batch, sample_numbers, without_loss
from meshwright.train.parallel.mesh import Mesh
from meshwright.train.parallel.pipeline import MicroBatch


class Feed:
    """The micro-batches of this rank, step by step. Use it in a `with` block, which ends the thread that reads ahead."""

    def __init__(self, job: TrainingJob, mesh: Mesh, samples: SampleSource, first: int) -> None:
        self.job, self.mesh, self.samples = job, mesh, samples
        self.deal: Deal = even_deal(mesh.layout, job.plan.workload.global_batch)
        self._end = first + job.plan.workload.global_batch  # of the next batch: samples beyond it are no part of it
        self.last_wait_s = 0.0  # for which the last batch was waited for
        self._returned: deque[Sequence[MicroBatch]] = deque()
        self._ahead = Prefetcher(samples, self._numbers(first))

    def next(self) -> Sequence[MicroBatch]:
        """The micro-batches of the next step, on this rank's device."""
        if self._returned:
            self.last_wait_s = 0.0
            return self._returned.popleft()
        batch = next(self._ahead)
        self.last_wait_s = self._ahead.last_wait_s
        end, self._end = self._end, self._end + self.job.plan.workload.global_batch
        return self._on_device(batch, end)

    def put_back(self, batches: Sequence[Sequence[MicroBatch]]) -> None:
        """Return the batches of steps that were not applied, in the order of the steps."""
        self._returned.extendleft(reversed(batches))

    def set_deal(self, deal: Deal, first: int) -> None:
        """Deal the micro-batches differently from sample `first` on, which the next step begins with."""
        self._ahead.close()
        self._returned.clear()
        self.deal, self._end = deal, first + self.job.plan.workload.global_batch
        self._ahead = Prefetcher(self.samples, self._numbers(first))

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ahead.close()

    def _numbers(self, first: int) -> Iterator[list[int]]:
        """Numbers of the samples in this rank's part of every batch, from `first` on, without end."""
        layout, batch_size, deal = self.mesh.layout, self.job.plan.workload.global_batch, self.deal
        while True:
            groups = sample_numbers(layout, self.mesh.dp.index, first, batch_size, deal)
            yield [number for group in groups for number in group]
            first += batch_size

    def _on_device(self, batch: Batch, end: int) -> list[MicroBatch]:
        """A batch as it was read, divided into micro-batches and moved to this rank's device. Samples from `end` on carry no loss."""
        workload, size = self.job.plan.workload, self.mesh.layout.micro_batch
        cuts = [slice(i, i + size) for i in range(0, len(batch.numbers), size)]
        arrays = batch.tokens, batch.labels, batch.documents
        if batch.numbers[-1] >= end:  # the batch does not divide evenly among the replicas
            arrays = without_loss(arrays, (batch.numbers < end).tolist())
        parts = [(batch.numbers[cut].tolist(), tuple(array[cut] for array in arrays)) for cut in cuts]
        num_ahead = self.job.plan.model.num_prediction_layers
        return [
            micro_batch((tokens, labels, documents), numbers, workload, self.mesh, num_ahead=num_ahead)
            for numbers, (tokens, labels, documents) in parts
        ]
