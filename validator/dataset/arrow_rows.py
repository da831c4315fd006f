"""Reads the rows of Parquet and Arrow files with pyarrow, in batches of limited size."""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from validator.rows import reading_limits
from validator.rows.reading_limits import TOO_DEEP, PackedLimit, UnreadableError

KINDS = ("parquet", "arrow")
_BATCH_ROWS = 1000  # rows
_ARROW_FILE_MAGIC = b"ARROW1"  # begins a file that lists its batches; a stream of batches has no such mark
_BUFFER_BYTES = 1 << 20  # bytes of a column that are read at once
_ROWS_BYTES = 4 << 20  # bytes of rows that are converted at once, as far as the rows before them tell


def read_table(kind: str, stream: IO[bytes], limit: PackedLimit) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the content of each row in a table file, with 0 for the line, as tables have none. `kind` is the type of
    the file, one of KINDS. `limit` counts the rows and their bytes. Raises UnreadableError if the file is damaged
    or nested too deeply, and TooLargeError if the rows or the number of columns exceed the limits."""
    number = 0
    try:
        for batch in _bounded_batches(kind, stream, limit.batch_bytes):
            for row in _python_rows(_times_as_numbers(batch), limit):
                limit.add("rows", 1)
                number += 1
                yield 0, row
    except (pa.ArrowException, MemoryError, OSError, ValueError, OverflowError) as err:
        raise _table_error(kind, number, err, limit.batch_bytes) from None


def _table_error(kind: str, number: int, err: Exception, most: int) -> Exception:
    """Return the exception to raise after pyarrow or Python has raised `err` while reading a file of the type `kind`.
    `number` is the number of rows that were read before the error, `most` the limit on the bytes of a batch."""
    if isinstance(err, MemoryError):
        return reading_limits.batch_too_large(number + 1, most)
    if isinstance(err, UnicodeDecodeError):
        return UnreadableError(0, "or one of the next rows is not UTF-8 text", number + 1)
    if isinstance(err, (pa.ArrowException, OSError)):
        message = str(err).splitlines()[0].lower() if str(err) else type(err).__name__
        return UnreadableError(0, f"is not a valid {kind} file: {message}")
    # such as a date after the year 9999, within a list
    found = f"or one of the next rows holds a value that Python cannot represent: {err}"
    return UnreadableError(0, found, number + 1)


def _python_rows(batch: Any, limit: PackedLimit) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch as dictionaries. Dictionaries may need many times the memory of the batch if its rows
    share values. As many rows are converted at once as fit in 4 MiB if they are like the rows before them, and one by
    one where that takes too much memory."""
    start, step = 0, 1
    while start < batch.num_rows:
        try:
            with reading_limits.memory_limit(reading_limits.MAX_PYLIST_BYTES if step > 1 else limit.batch_bytes):
                rows = batch.slice(start, step).to_pylist()
        except MemoryError:
            if step == 1:
                raise
            step = 1
            continue
        size = sum(map(reading_limits.approximate_size, rows))
        limit.add("bytes", size)
        yield from rows
        start += step
        step = max(1, min(4 * step, _ROWS_BYTES * step // size))


def _bounded_batches(kind: str, stream: IO[bytes], most: int) -> Iterator[Any]:
    """Yield the record batches of a Parquet or Arrow file (`kind`), cut into batches of at most 1,000 rows, and of
    fewer rows if the rows are large. Raises MemoryError if a batch of the file takes more than `most` bytes."""
    pa.set_memory_pool(pa.system_memory_pool())  # other pools ask the system for more than they use
    batches = _parquet_batches(stream) if kind == "parquet" else _arrow_batches(stream)
    while True:
        with reading_limits.memory_limit(most):
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate(full=True)
        step = max(1, min(_BATCH_ROWS, reading_limits.MAX_ROW_BYTES * batch.num_rows // max(batch.nbytes, 1)))
        for start in range(0, batch.num_rows, step):
            yield batch.slice(start, step)


def _parquet_batches(stream: IO[bytes]) -> Iterator[Any]:
    file = pq.ParquetFile(stream, buffer_size=_BUFFER_BYTES)
    _require_flat(file.schema_arrow)
    size = sum(file.metadata.row_group(group).total_byte_size for group in range(file.metadata.num_row_groups))
    step = reading_limits.MAX_ROW_BYTES * file.metadata.num_rows // max(size, 1)
    yield from file.iter_batches(max(1, min(_BATCH_ROWS, step)), use_threads=False)


def _arrow_batches(stream: IO[bytes]) -> Iterator[Any]:
    source, listed = _memory_mapped(stream), stream.read(len(_ARROW_FILE_MAGIC)) == _ARROW_FILE_MAGIC
    stream.seek(0)
    if not listed:
        reader = pa.ipc.open_stream(source)
        _require_flat(reader.schema)
        yield from reader
        return
    file = pa.ipc.open_file(source)
    _require_flat(file.schema)
    yield from (file.get_batch(index) for index in range(file.num_record_batches))


def _memory_mapped(stream: IO[bytes]) -> Any:
    """Return an uncompressed file as a memory map, so that its batches need no memory of this process. Other streams
    are returned unchanged."""
    if not isinstance(getattr(stream, "raw", None), io.FileIO) or not os.fstat(stream.fileno()).st_size:
        return stream
    return pa.BufferReader(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


def _require_flat(schema: Any) -> None:
    """Raise UnreadableError if a column's type is nested too deeply. Raise TooLargeError if there are too many
    columns."""
    if len(schema) > reading_limits.MAX_COLUMNS:
        raise reading_limits.too_many_columns(len(schema))
    level = list(schema.types)
    for _ in range(reading_limits.MAX_NESTING):
        level = [kind.field(index).type for kind in level for index in range(kind.num_fields)]
    if level:
        raise UnreadableError(0, TOO_DEEP)


def _times_as_numbers(batch: Any) -> Any:
    """Return the batch with dates and times converted to numbers. LLaMA-Factory accepts neither a date nor a number as
    text, so the conversion changes no result. Python has no dates after the year 9999, so reading dates could fail."""
    columns = batch.columns
    for index, column in enumerate(columns):
        if pa.types.is_temporal(column.type):
            columns[index] = column.view(pa.int32() if column.type.bit_width == 32 else pa.int64())
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
