"""How long earlier builds of the same source took, from the records of finished builds in the store."""

from __future__ import annotations

from builder.progress.display import Estimate
from builder.records.build_record import BuildRecord
from builder.store import Store
from builder.wheels.job import CompileJob


class EarlierBuilds:
    """The records of the finished builds in a store; they are read at the first question."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._records: list[BuildRecord] | None = None

    def estimate(self, job: CompileJob, source: str) -> Estimate | None:
        """The times of earlier builds that compiled the same work with as many compilers; None if there is none.

        The same work is the source with the digest `source` for the same architectures, with the same executor. Such
        builds may differ in torch, CUDA or Python, and in how many objects came from the compiler cache.
        """
        if self._records is None:
            self._records = [stored.record for stored in self._store.builds()]
        same = [
            each
            for each in self._records
            if each.record.source.digest == source
            and each.record.build.archs == job.build.archs
            and each.record.toolchain.executor == job.toolchain.executor
            and each.jobs == job.jobs
        ]
        if not same:
            return None
        files = max((len(each.objects.files) for each in same if each.objects), default=0)
        times = [each.seconds for each in same]
        return Estimate(min(times), max(times), files)
